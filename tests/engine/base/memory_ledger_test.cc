#include "engine/base/memory_ledger.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/error.h"

namespace tandem {
namespace {

constexpr int64_t kMiB = 1 << 20;

TEST(MemoryLedger, WhatIsReservedIsNotFreeUntilItIsReleased) {
  MemoryLedger ledger(100);
  {
    const MemoryReservation a = ledger.Reserve("a", {.weights = 30, .kv = 20, .scratch = 10});
    EXPECT_EQ(ledger.used_bytes(), 60);
    EXPECT_EQ(ledger.free_bytes(), 40);
    EXPECT_THROW(ledger.Reserve("b", {.weights = 41}), Error);
    EXPECT_EQ(ledger.used_bytes(), 60) << "a refusal leaves nothing behind";
    const MemoryReservation b = ledger.Reserve("b", {.weights = 40});
    EXPECT_EQ(ledger.free_bytes(), 0);
    ASSERT_EQ(ledger.Entries().size(), 2u);
    EXPECT_EQ(ledger.Entries()[0].owner, "a");
    EXPECT_EQ(ledger.Entries()[0].claim.kv, 20);
  }
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST(MemoryLedger, ARefusalShowsTheArithmetic) {
  MemoryLedger ledger(1024 * kMiB);
  const MemoryReservation a =
      ledger.Reserve("a", {.weights = 500 * kMiB, .kv = 200 * kMiB, .scratch = 50 * kMiB});

  try {
    ledger.Reserve("b", {.weights = 1536 * kMiB, .kv = 300 * kMiB, .scratch = 212 * kMiB});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_EQ(error.reason(), "out_of_memory");
    EXPECT_STREQ(error.what(),
                 "model 'b' needs 2.00 GiB (weights 1.50 GiB, keys and values 300.0 MiB, scratch "
                 "212.0 MiB), but 274.0 MiB of the memory budget of 1.00 GiB are free: 'a' holds "
                 "750.0 MiB (weights 500.0 MiB, keys and values 200.0 MiB, scratch 50.0 MiB)");
  }
}

TEST(MemoryLedger, GrowingTakesNoMoreThanItsPart) {
  MemoryLedger ledger(100);
  MemoryReservation a = ledger.Reserve("a", {.weights = 10, .kv = 10});

  a.GrowKv(1000, 2);
  EXPECT_EQ(a.claim().kv, 50);  // 10 and half of 80
  a.GrowKv(55, 1);
  EXPECT_EQ(a.claim().kv, 55);
  a.GrowKv(20, 1);
  EXPECT_EQ(a.claim().kv, 55) << "it never shrinks";
  EXPECT_EQ(ledger.used_bytes(), 65);
}

TEST(MemoryLedger, SettlingMayTakeMoreThanThereIs) {
  MemoryLedger ledger(100);
  MemoryReservation a = ledger.Reserve("a", {.weights = 90});

  a.Settle({.weights = 90, .kv = 5, .scratch = 15, .weights_mapped = true});

  EXPECT_EQ(ledger.used_bytes(), 110);
  EXPECT_EQ(ledger.free_bytes(), 0);
  EXPECT_TRUE(ledger.Entries()[0].claim.weights_mapped);
}

TEST(MemoryLedger, AReservationMovesAndMayOutliveTheLedger) {
  std::optional<MemoryLedger> ledger(std::in_place, 100);
  MemoryReservation a = ledger->Reserve("a", {.weights = 10});
  MemoryReservation b = ledger->Reserve("b", {.weights = 20});

  b = std::move(a);
  EXPECT_EQ(ledger->used_bytes(), 10) << "what b held before is released";
  EXPECT_EQ(b.claim().weights, 10);
  a = MemoryReservation();
  a.GrowKv(10, 1);  // a claim on nothing
  EXPECT_EQ(ledger->used_bytes(), 10);
  ledger.reset();
  b.Release();
}

TEST(MemoryLedger, ManyThreadsNeverTakeMoreThanTheBudget) {
  MemoryLedger ledger(1000);
  std::atomic<bool> is_overdrawn{false};
  std::atomic<int> n_reserved{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 500; ++i) {
        try {
          MemoryReservation mine = ledger.Reserve(std::to_string(t), {.weights = 200 + i % 7});
          ++n_reserved;
          mine.GrowKv(300, 2);
          if (ledger.used_bytes() > 1000) is_overdrawn = true;
          const MemoryReservation moved = std::move(mine);
          if (ledger.Entries().empty()) is_overdrawn = true;
        } catch (const Error&) {
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_FALSE(is_overdrawn);
  EXPECT_GT(n_reserved, 0);
  EXPECT_EQ(ledger.used_bytes(), 0);
}

TEST(MemoryLedger, BytesAreWrittenInTheUnitThatFits) {
  EXPECT_EQ(BytesText(0), "0 bytes");
  EXPECT_EQ(BytesText(1023), "1023 bytes");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(5 * kMiB / 2), "2.5 MiB");
  EXPECT_EQ(BytesText(int64_t{5} << 30), "5.00 GiB");
}

}  // namespace
}  // namespace tandem
