#include "server/http/body_budget.h"

namespace tandem::server {

bool BodyBudget::HasRoomFor(size_t bytes) const {
  return bytes <= kFreeBytes || (bytes <= limit_bytes_ && used_bytes_ <= limit_bytes_ - bytes);
}

bool BodyBudget::TryTake(size_t bytes) {
  size_t used = used_bytes_;
  do {
    if (bytes > limit_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  return true;
}

void BodyBudget::GiveBack(size_t bytes) {
  used_bytes_ -= bytes;
  given_back_bytes_ += bytes;
}

bool BodyBudget::TakeBurst() {
  if (given_back_bytes_ < kBurstBytes) return false;
  given_back_bytes_ = 0;
  return true;
}

bool BodyShare::GrowTo(size_t bytes) {
  if (bytes <= BodyBudget::kFreeBytes || bytes <= bytes_) return true;
  if (!budget_->TryTake(bytes - bytes_)) return false;
  bytes_ = bytes;
  return true;
}

}  // namespace tandem::server
