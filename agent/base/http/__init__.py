"""Serves HTTP/1.1: access, requests and answers."""
