#pragma once

#include <string>
#include <string_view>

namespace tandem::server {

// Translates a statement of DatabaseConnection: ? and ?1 become $1, {now_ms} an expression. Texts
// in quotes and comments stay.
std::string PostgresStatement(std::string_view sql);

// Translates a step of a Schema: types, the numbering of rows, STRICT.
std::string PostgresSchemaStep(std::string_view step);

// PostgreSQL's texts are UTF-8 without NUL. Every other byte becomes U+FFFD.
std::string PostgresText(std::string_view text);

}  // namespace tandem::server
