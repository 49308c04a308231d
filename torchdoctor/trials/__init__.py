"""Trials: is a candidate faster than the untouched program, and did training stay the same?"""
