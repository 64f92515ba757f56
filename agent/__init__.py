"""The kubemend node agent: sees devices fail, restarts the containers they hurt, in place.

The packages follow the way of the data: ``sources`` observe, ``health`` folds findings into verdicts,
``restart`` decides and plans, ``actuator`` acts through the container runtime, ``reporters`` tell Kubernetes.
``model``, ``health`` and ``restart`` are pure: values in, values out, time passed in.
"""
