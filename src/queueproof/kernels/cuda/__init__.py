"""What is called of NVIDIA's own libraries, through ctypes."""
