"""Writers: one module per destination."""
