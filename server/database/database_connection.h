#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tandem::server {

// A value for one parameter of a statement. `text` borrows.
struct BoundValue {
  enum class Type { kInt, kReal, kText };
  Type type = Type::kInt;
  bool is_null = false;
  int64_t integer = 0;
  double real = 0;
  std::string_view text = {};
};

// The result of one statement. Columns count from 0. Must not outlive its DatabaseConnection.
class Rows {
 public:
  virtual ~Rows() = default;
  // Returns false if there are no more rows.
  virtual bool Next() = 0;
  virtual bool IsNull(int column) const = 0;
  virtual int64_t Int(int column) const = 0;
  virtual double Real(int column) const = 0;
  virtual std::string Text(int column) const = 0;
};

// One connection to a database of one kind. Every difference between the kinds is behind this
// interface. For one thread at a time. Methods throw as Database.
//
// Statements are written in the common part of SQL: parameters are ? or ?1, times are integers, and
// INSERT … ON CONFLICT, RETURNING and IS NOT DISTINCT FROM exist everywhere. `{now_ms}` is the
// database's clock in milliseconds since 1970.
class DatabaseConnection {
 public:
  virtual ~DatabaseConnection() = default;

  // Prepares each distinct text once. The values must live until the rows are read.
  virtual std::unique_ptr<Rows> Execute(const std::string& sql,
                                        std::span<const BoundValue> values) = 0;
  // Rows changed by the last INSERT, UPDATE or DELETE.
  virtual int64_t changes() const = 0;

  // Transactions do not nest. `subject` orders them: no two transactions with the same subject run
  // at the same time, in any process.
  virtual void Begin(std::string_view subject) = 0;
  virtual void Commit() = 0;
  // Does nothing without a transaction. Never throws.
  virtual void Rollback() noexcept = 0;

  // A number that changes whenever another connection has changed the table.
  virtual int64_t ChangeCount(std::string_view table) = 0;
};

}  // namespace tandem::server
