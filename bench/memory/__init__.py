"""What agent and controller need to know many pods, and pods that are as large as anybody can make them."""
