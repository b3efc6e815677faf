#pragma once

#include <span>

namespace tandem::server {

// The tables of one kind of database.
struct Schema {
  const char* name = "";   // a PostgreSQL database can hold the tables of several schemas
  int application_id = 0;  // in the header of a SQLite file; other files are refused
  // Step i updates from version i to version i + 1. Released steps must not change. They are
  // written for SQLite; PostgresSchemaStep translates them.
  std::span<const char* const> steps;
};

// Jobs, uploaded files, responses, batches and aliases.
const Schema& ServerSchema();

}  // namespace tandem::server
