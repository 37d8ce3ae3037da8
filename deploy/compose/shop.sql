-- Run once, by the container of PostgreSQL, in the database shop.
\getenv password PGPASSWORD_OF_TIDELOG
CREATE ROLE shop NOLOGIN;
CREATE ROLE tidelog LOGIN REPLICATION PASSWORD :'password';
-- Tidelog publishes tables, also those that come later, as a member of their owner.
GRANT shop TO tidelog;
GRANT CREATE ON DATABASE shop TO tidelog;
CREATE SCHEMA tidelog AUTHORIZATION tidelog;
GRANT CREATE ON SCHEMA public TO shop;

SET ROLE shop;
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, amount numeric(12, 2) NOT NULL);
INSERT INTO orders (item, amount) SELECT 'item ' || n, n * 1.25 FROM generate_series(1, 1000) n;
