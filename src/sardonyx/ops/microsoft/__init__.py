"""The ops of com.microsoft that saved and quantized models use, each family a module."""
