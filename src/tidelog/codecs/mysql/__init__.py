"""The binlog of MySQL and MariaDB, its rows and their texts."""
