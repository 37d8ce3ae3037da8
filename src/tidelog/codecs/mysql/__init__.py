"""Codecs of MySQL's and MariaDB's binlog, its rows and their texts."""
