"""What must hold after every step, kept by models of their own."""
