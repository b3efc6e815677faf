#include "server/database/database.h"

#include <utility>

#include "server/database/postgres_connection.h"
#include "server/database/sqlite_connection.h"

namespace tandem::server {

Query& Query::Bind(int64_t value) {
  values_.push_back({.type = BoundValue::Type::kInt, .integer = value});
  return *this;
}

Query& Query::Bind(double value) {
  values_.push_back({.type = BoundValue::Type::kReal, .real = value});
  return *this;
}

Query& Query::Bind(std::string_view text) {
  values_.push_back({.type = BoundValue::Type::kText, .text = text});
  return *this;
}

Query& Query::Bind(const std::optional<int64_t>& value) {
  values_.push_back({.type = BoundValue::Type::kInt,
                     .is_null = !value.has_value(),
                     .integer = value.value_or(0)});
  return *this;
}

Query& Query::Bind(const std::optional<double>& value) {
  values_.push_back(
      {.type = BoundValue::Type::kReal, .is_null = !value.has_value(), .real = value.value_or(0)});
  return *this;
}

Query& Query::Bind(const std::optional<std::string_view>& text) {
  values_.push_back({.type = BoundValue::Type::kText,
                     .is_null = !text.has_value(),
                     .text = text.value_or(std::string_view())});
  return *this;
}

bool Query::Next() {
  if (!rows_) rows_ = connection_->Execute(sql_, values_);
  column_ = 0;
  return rows_->Next();
}

int64_t Query::Int() { return rows_->Int(column_++); }

double Query::Real() { return rows_->Real(column_++); }

std::string Query::Text() { return rows_->Text(column_++); }

bool Query::SkipNull() {
  if (!rows_->IsNull(column_)) return false;
  ++column_;
  return true;
}

std::optional<int64_t> Query::IntOrNull() {
  return SkipNull() ? std::nullopt : std::optional<int64_t>(Int());
}

std::optional<std::string> Query::TextOrNull() {
  return SkipNull() ? std::nullopt : std::optional<std::string>(Text());
}

Database::Database(const std::filesystem::path& file, const Schema& schema)
    : Database(DatabaseSource{.file = file}, schema) {}

Database::Database(const DatabaseSource& source, const Schema& schema) {
  if (source.is_shared()) {
    connection_ = std::make_unique<PostgresConnection>(source, schema);
  } else {
    connection_ = std::make_unique<SqliteConnection>(source.file, schema);
  }
}

DatabaseSource InDataDir(const DatabaseSource& source, const std::filesystem::path& data_dir,
                         std::string_view name) {
  return source.is_shared() ? source : DatabaseSource{.file = data_dir / name};
}

Transaction::Transaction(Database& database, std::string_view subject)
    : connection_(*database.connection_) {
  connection_.Begin(subject);
}

Transaction::~Transaction() {
  if (is_open_) connection_.Rollback();
}

void Transaction::Commit() {
  connection_.Commit();
  is_open_ = false;
}

}  // namespace tandem::server
