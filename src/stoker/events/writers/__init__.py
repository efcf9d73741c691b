"""Writers: one module for each destination."""
