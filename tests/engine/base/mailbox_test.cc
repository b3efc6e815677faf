#include "engine/base/mailbox.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

namespace tandem {
namespace {

TEST(Mailbox, TakeAllEmptiesItInTheOrderOfPosting) {
  Mailbox<int> mailbox;
  for (int i = 0; i < 3; ++i) mailbox.Post(i);

  EXPECT_EQ(mailbox.TakeAll(), (std::vector<int>{0, 1, 2}));
  EXPECT_TRUE(mailbox.TakeAll().empty());
}

TEST(Mailbox, CarriesMessagesThatCanOnlyBeMoved) {
  Mailbox<std::unique_ptr<int>> mailbox;

  mailbox.Post(std::make_unique<int>(5));

  EXPECT_EQ(*mailbox.TakeAll().at(0), 5);
}

TEST(Mailbox, WaitForReturnsAtOnceWhenAMessageIsThere) {
  Mailbox<int> mailbox;
  mailbox.Post(1);

  mailbox.WaitFor(std::chrono::hours(1));

  EXPECT_EQ(mailbox.TakeAll().size(), 1u);
}

TEST(Mailbox, WaitForGivesUpWhenNothingComes) {
  Mailbox<int> mailbox;

  mailbox.WaitFor(std::chrono::milliseconds(1));

  EXPECT_TRUE(mailbox.TakeAll().empty());
}

// A lost wake-up would make the reader wait for an hour, and the test would time out.
TEST(Mailbox, LosesNothingOfManyWritersAndKeepsEachWritersOrder) {
  constexpr int kWriters = 3;
  constexpr int kMessages = 2000;
  struct Message {
    int writer;
    int number;
  };
  Mailbox<Message> mailbox;
  std::vector<std::jthread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&mailbox, writer] {
      for (int i = 0; i < kMessages; ++i) mailbox.Post({writer, i});
    });
  }

  std::vector<int> next(kWriters, 0);
  for (int received = 0; received < kWriters * kMessages;) {
    mailbox.WaitFor(std::chrono::hours(1));
    for (const Message& message : mailbox.TakeAll()) {
      ASSERT_EQ(message.number, next[static_cast<size_t>(message.writer)]++);
      ++received;
    }
  }

  EXPECT_EQ(next, std::vector<int>(kWriters, kMessages));
}

}  // namespace
}  // namespace tandem
