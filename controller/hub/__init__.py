"""The hub: the gRPC service that every agent holds one stream to. Transport, identity and limits; no decisions."""
