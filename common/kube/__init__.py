"""The way to the Kubernetes API: raw paths and plain JSON objects over ``kubernetes.aio``'s transport.

``kubernetes.aio`` does what is hard to do right (kubeconfig, exec credentials, rotating service-account tokens, TLS);
its other half, its generated API and its models stay unimported (``lightly``): an agent has better uses for the memory.

``client.connect()`` gives the client, ``errors`` the error tree, ``paths`` the request paths.
"""
