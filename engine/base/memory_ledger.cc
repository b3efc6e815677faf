#include "engine/base/memory_ledger.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"

namespace tandem {
namespace {

// More holders would make the message longer without helping.
constexpr size_t kMaxNamedHolders = 6;

std::string ClaimText(const MemoryClaim& claim) {
  return "weights " + BytesText(claim.weights) + ", keys and values " + BytesText(claim.kv) +
         ", scratch " + BytesText(claim.scratch);
}

}  // namespace

struct MemoryReservation::Book {
  explicit Book(int64_t budget_bytes) : budget(budget_bytes) {}

  // Both functions require `mutex` to be held.
  int64_t Used() const {
    int64_t used = 0;
    for (const auto& [key, entry] : entries) used += entry.claim.total();
    return used;
  }
  int64_t Free() const { return std::max<int64_t>(0, budget - Used()); }

  const int64_t budget;
  std::mutex mutex;  // guards entries and next_key
  std::map<uint64_t, MemoryLedger::Entry> entries;
  uint64_t next_key = 1;
};

MemoryReservation& MemoryReservation::operator=(MemoryReservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  book_ = std::move(other.book_);
  key_ = other.key_;
  claim_ = other.claim_;
  return *this;
}

void MemoryReservation::GrowKv(int64_t kv_bytes, int64_t parts) {
  TANDEM_CHECK(parts > 0);
  if (!book_) return;
  const std::lock_guard lock(book_->mutex);
  const int64_t more = std::min(kv_bytes - claim_.kv, book_->Free() / parts);
  if (more <= 0) return;
  claim_.kv += more;
  book_->entries.at(key_).claim = claim_;
}

void MemoryReservation::Settle(const MemoryClaim& actual) {
  claim_ = actual;
  if (!book_) return;
  const std::lock_guard lock(book_->mutex);
  book_->entries.at(key_).claim = claim_;
}

void MemoryReservation::Release() {
  if (!book_) return;
  {
    const std::lock_guard lock(book_->mutex);
    book_->entries.erase(key_);
  }
  book_.reset();
  claim_ = {};
}

MemoryLedger::MemoryLedger(int64_t budget_bytes)
    : book_(std::make_shared<MemoryReservation::Book>(budget_bytes)) {
  TANDEM_CHECK(budget_bytes >= 0);
}

MemoryReservation MemoryLedger::Reserve(const std::string& owner, const MemoryClaim& claim) {
  TANDEM_CHECK(claim.weights >= 0 && claim.kv >= 0 && claim.scratch >= 0);
  const std::lock_guard lock(book_->mutex);
  const int64_t free = book_->Free();
  if (claim.total() > free) {
    std::string message = "model '" + owner + "' needs " + BytesText(claim.total()) + " (" +
                          ClaimText(claim) + "), but " + BytesText(free) +
                          " of the memory budget of " + BytesText(book_->budget) + " are free";
    size_t n_named = 0;
    for (const auto& [key, entry] : book_->entries) {
      if (n_named == kMaxNamedHolders) {
        message += ", and others";
        break;
      }
      message += std::string(n_named++ == 0 ? ": " : ", ") + "'" + entry.owner + "' holds " +
                 BytesText(entry.claim.total()) + " (" + ClaimText(entry.claim) + ")";
    }
    throw Error(ErrorCode::kUnavailable, message).WithReason("out_of_memory");
  }
  MemoryReservation reservation;
  reservation.book_ = book_;
  reservation.key_ = book_->next_key++;
  reservation.claim_ = claim;
  book_->entries[reservation.key_] = {owner, claim};
  return reservation;
}

std::vector<MemoryLedger::Entry> MemoryLedger::Entries() const {
  const std::lock_guard lock(book_->mutex);
  std::vector<Entry> entries;
  for (const auto& [key, entry] : book_->entries) entries.push_back(entry);
  return entries;
}

int64_t MemoryLedger::budget_bytes() const { return book_->budget; }

int64_t MemoryLedger::used_bytes() const {
  const std::lock_guard lock(book_->mutex);
  return book_->Used();
}

int64_t MemoryLedger::free_bytes() const {
  const std::lock_guard lock(book_->mutex);
  return book_->Free();
}

std::string BytesText(int64_t bytes) {
  std::array<char, 32> text{};
  const auto n = static_cast<double>(bytes);
  if (bytes >= int64_t{1} << 30) {
    std::snprintf(text.data(), text.size(), "%.2f GiB", n / (1 << 30));
  } else if (bytes >= 1 << 20) {
    std::snprintf(text.data(), text.size(), "%.1f MiB", n / (1 << 20));
  } else if (bytes >= 1 << 10) {
    std::snprintf(text.data(), text.size(), "%.1f KiB", n / (1 << 10));
  } else {
    std::snprintf(text.data(), text.size(), "%lld bytes", static_cast<long long>(bytes));
  }
  return text.data();
}

}  // namespace tandem
