#pragma once

namespace tandem::server {

// Prints every model family and its support (engine/model/family_table.h), as a table or as JSON.
void PrintFamilies(bool is_json);

}  // namespace tandem::server
