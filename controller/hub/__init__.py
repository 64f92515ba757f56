"""The hub: the gRPC service to which every agent holds one stream. Transport, identity and limits; no decisions."""
