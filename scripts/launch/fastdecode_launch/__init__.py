"""Brings up, watches and takes down the processes of one FastDecode deployment."""
