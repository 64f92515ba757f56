"""Access the Kubernetes API by raw paths and plain JSON objects over ``kubernetes.aio``'s transport.

``kubernetes.aio`` handles the difficult parts (kubeconfig, exec credentials, rotating service-account tokens, TLS).
Its generated API and its models stay unimported (``library``) to save the agent's memory.

``client.connect()`` gives the client, ``errors`` the error tree, ``paths`` the request paths.
"""
