"""The way to the Kubernetes API: raw paths and plain JSON objects over ``kubernetes.aio``'s transport.

``kubernetes.aio`` does what is hard to do right (kubeconfig, exec credentials, rotating service-account tokens, TLS);
its generated API and model modules stay unimported, because they cost an agent some 25 MB that it has better uses for.

``client.connect()`` gives the client, ``errors`` the error tree, ``paths`` the request paths.
"""
