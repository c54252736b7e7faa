"""Durable batch jobs on Ray."""
