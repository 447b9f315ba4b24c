"""What a table's rows are: the schema that a store fixes, and which rows its optimizer can make."""
