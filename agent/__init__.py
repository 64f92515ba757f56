"""The kubemend node agent: detect device faults and restart the affected containers in place.

The packages follow the data: ``sources`` observe, ``health`` folds findings into verdicts, ``restart`` decides and
plans, ``actuator`` acts through the container runtime, ``reporters`` write Kubernetes conditions, Events and taints.
``model``, ``health`` and ``restart`` are pure: values in, values out, time passed in.
"""
