#include "engine/sched/turn_taking.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "engine/kv/block_pool.h"
#include "engine/kv/prefix_index.h"
#include "engine/sched/scheduler.h"

namespace tandem::engine {
namespace {

// A queue whose entries are numbered in order of arrival.
struct Numbered {
  uint64_t Add(uint64_t client, int priority = 0, int n = 1) {
    const uint64_t id = entries.size();
    entries.push_back(
        {.request = RequestId{id}, .client = client, .priority = priority, .arrival = id, .n = n});
    queue.Queue(entries.back());
    return id;
  }
  uint64_t Admit() {
    const uint64_t id = queue.Next().value().value;
    queue.Admit();
    return id;
  }
  uint64_t AdmitClient() { return entries[Admit()].client; }

  TurnTaking queue;
  std::vector<TurnTaking::Entry> entries;
};

TEST(TurnTaking, OneClientKeepsTheOrderOfItsRequests) {
  Numbered line;
  for (int i = 0; i < 100; ++i) line.Add(7, 0, 1 + i % 3);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(line.Admit(), i);
  EXPECT_FALSE(line.queue.Next());
}

TEST(TurnTaking, ANewcomerStandsBehindOneRequestOfABacklogAndNotBehindAll) {
  Numbered line;
  for (int i = 0; i < 50; ++i) line.Add(1);
  line.Admit();
  line.Admit();
  const uint64_t newcomer = line.Add(2);

  const uint64_t first = line.Admit();
  EXPECT_TRUE(first == newcomer || line.Admit() == newcomer);
}

TEST(TurnTaking, AnIdleClientSavesNothingUp) {
  Numbered line;
  for (int i = 0; i < 20; ++i) line.Add(1);
  for (int i = 0; i < 10; ++i) line.Admit();
  line.Add(2);
  line.Add(2);
  line.Add(2);

  std::map<uint64_t, int> went;
  for (int i = 0; i < 4; ++i) ++went[line.AdmitClient()];
  EXPECT_EQ(went[1], 2);
  EXPECT_EQ(went[2], 2);
}

TEST(TurnTaking, AClientThatSendsOneAtATimeGainsNothingOverOneWithABacklog) {
  Numbered line;
  for (int i = 0; i < 100; ++i) line.Add(1);
  std::map<uint64_t, int> went;
  line.Add(2);
  for (int i = 0; i < 100; ++i) {
    const uint64_t client = line.AdmitClient();
    ++went[client];
    if (client == 2) line.Add(2);
  }
  EXPECT_EQ(went[1], 50);
  EXPECT_EQ(went[2], 50);
}

TEST(TurnTaking, ARequestOfManyChoicesIsThatManyTurns) {
  Numbered line;
  line.Add(2, 0, 4);
  line.Add(2);
  for (int i = 0; i < 9; ++i) line.Add(1);

  std::vector<uint64_t> clients;
  for (int i = 0; i < 6; ++i) clients.push_back(line.AdmitClient());
  EXPECT_EQ(clients, (std::vector<uint64_t>{2, 1, 1, 1, 1, 2}));
}

TEST(TurnTaking, APriorityReordersItsOwnClientOnly) {
  Numbered line;
  const uint64_t ordinary = line.Add(1);
  const uint64_t other = line.Add(2);
  const uint64_t late = line.Add(1, 5);
  const uint64_t urgent = line.Add(1, std::numeric_limits<int>::min());

  std::vector<uint64_t> order;
  for (int i = 0; i < 4; ++i) order.push_back(line.Admit());
  EXPECT_EQ(order, (std::vector<uint64_t>{urgent, other, ordinary, late}));
}

TEST(TurnTaking, ARequestThatLeavesCostsItsClientNoTurn) {
  Numbered line;
  for (int i = 0; i < 50; ++i) line.Add(1);
  const uint64_t last = line.Add(1);
  for (int i = 0; i < 3; ++i) line.Add(2);
  for (uint64_t i = 0; i < 50; ++i) line.queue.Leave(line.entries[i]);

  EXPECT_EQ(line.Admit(), last);
}

TEST(TurnTaking, ClientsAreForgottenWhenNobodyWaits) {
  Numbered line;
  for (uint64_t client = 0; client < 1000; ++client) {
    const uint64_t id = line.Add(client);
    if (client % 2 == 0) {
      line.Admit();
    } else {
      line.queue.Leave(line.entries[id]);
    }
    EXPECT_EQ(line.queue.num_clients(), 0u);
  }
}

// ---- The whole scheduler: random traffic of several clients; failures print the seed.

struct Traffic {
  struct Sent {
    uint64_t client = 0;
    int priority = 0;
    int64_t to_generate = 0;
    int n = 1;
    bool started = false;
  };

  explicit Traffic(uint64_t seed) : random(seed), pool(400), index(Sha256Digest{}) {
    SchedulerOptions options;
    options.max_seqs = Pick(1, 4);
    options.prefill_chunk_tokens = Pick(4, 48);
    options.max_model_len = 128;
    scheduler = std::make_unique<Scheduler>(options, pool, index);
  }

  int64_t Pick(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  }

  uint64_t Add(uint64_t client, int priority, int n) {
    Scheduler::Request request;
    request.id = RequestId{next_id++};
    request.client = client;
    request.priority = priority;
    request.n = n;
    const int64_t length = Pick(1, 40);
    for (int64_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>(Pick(0, 9)));
    sent[request.id] = {client, priority, Pick(1, 12), n, false};
    const uint64_t id = request.id.value;
    scheduler->Add(std::move(request));
    return id;
  }

  // Calls `on_start(id)` for each request that gets its first slot, in queue order.
  template <class OnStart>
  void Step(const OnStart& on_start) {
    const BatchPlan& plan = scheduler->Plan();
    std::vector<const Sequence*> begun;
    for (auto& [id, request] : sent) {
      if (request.started) continue;
      const Sequence& first = *scheduler->Choices(id)[0];
      if (first.phase != SequencePhase::kRunning) continue;
      request.started = true;
      begun.push_back(&first);
    }
    std::sort(begun.begin(), begun.end(), GoesFirst());
    for (const Sequence* sequence : begun) on_start(sequence->request);
    const std::vector<PlannedSlice> slices = plan.slices;
    scheduler->Commit();
    for (const PlannedSlice& slice : slices) {
      if (!slice.samples) continue;
      const RequestId id = slice.sequence->request;
      std::vector<Sequence*> sampled{slice.sequence};
      if (slice.forks) {
        sampled.clear();
        for (const auto& choice : scheduler->Choices(id)) sampled.push_back(choice.get());
      }
      for (Sequence* sequence : sampled) {
        if (sequence->length() - sequence->prompt_len + 1 >= sent.at(id).to_generate) {
          scheduler->Finish(*sequence);
        } else {
          scheduler->Append(*sequence, 3);
        }
      }
      if (scheduler->Choices(id).empty()) sent.erase(id);
    }
    scheduler->CheckInvariants();
  }

  std::mt19937_64 random;
  BlockPool pool;
  PrefixIndex index;
  std::unique_ptr<Scheduler> scheduler;
  std::map<RequestId, Sent> sent;
  uint64_t next_id = 1;
};

TEST(Fairness, WithinAKeyAndPriorityFirstComeIsFirstServed) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Traffic traffic(seed);
    std::map<std::pair<uint64_t, int>, uint64_t> last_started;
    const auto on_start = [&](RequestId id) {
      const Traffic::Sent& request = traffic.sent.at(id);
      uint64_t& last = last_started[{request.client, request.priority}];
      ASSERT_LT(last, id.value) << "a later request of the same key went first";
      last = id.value;
    };
    for (int step = 0; step < 150; ++step) {
      if (traffic.sent.size() < 40) {
        traffic.Add(static_cast<uint64_t>(traffic.Pick(0, 4)), static_cast<int>(traffic.Pick(0, 1)),
                    static_cast<int>(traffic.Pick(1, 3)));
      }
      if (!traffic.sent.empty() && traffic.Pick(0, 19) == 0) {
        const RequestId id = traffic.sent.begin()->first;
        traffic.scheduler->Cancel(id);
        traffic.sent.erase(id);
      }
      traffic.Step(on_start);
      if (HasFatalFailure()) return;
    }
  }
}

// While a request of another key waits, at most one request of key 1 starts. The length and growth
// of key 1's backlog do not matter.
TEST(Fairness, NoBacklogOfOneKeyDelaysAnotherByMoreThanItsTurn) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Traffic traffic(seed);
    for (int i = 0; i < 60; ++i) traffic.Add(1, 0, 1);
    const int64_t warm_up = traffic.Pick(0, 10);
    for (int64_t i = 0; i < warm_up; ++i) traffic.Step([](RequestId) {});

    std::map<uint64_t, int64_t> overtaken;  // by requests of key 1, per waiting request of others
    const uint64_t other_clients = static_cast<uint64_t>(traffic.Pick(1, 3));
    for (uint64_t client = 2; client < 2 + other_clients; ++client) {
      overtaken[traffic.Add(client, 0, 1)] = 0;
    }
    for (int step = 0; step < 4000 && !overtaken.empty(); ++step) {
      traffic.Add(1, 0, 1);
      traffic.Step([&](RequestId id) {
        if (traffic.sent.at(id).client == 1) {
          for (auto& [waiting, count] : overtaken) ++count;
        } else {
          overtaken.erase(id.value);
        }
      });
      for (const auto& [waiting, count] : overtaken) {
        ASSERT_LE(count, 1) << "request " << waiting << " waits for more than one of key 1";
      }
    }
    ASSERT_TRUE(overtaken.empty()) << "somebody starved";
  }
}

TEST(Fairness, KeysThatAlwaysWaitGetEqualShares) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Traffic traffic(seed);
    std::map<uint64_t, int64_t> waiting;
    std::map<uint64_t, int64_t> started;
    for (int step = 0; step < 400; ++step) {
      for (uint64_t client = 1; client <= 3; ++client) {
        // Clients refill at different rates, but never have an empty queue.
        while (waiting[client] < static_cast<int64_t>(client * client)) {
          traffic.Add(client, 0, 1);
          ++waiting[client];
        }
      }
      traffic.Step([&](RequestId id) {
        const uint64_t client = traffic.sent.at(id).client;
        ++started[client];
        --waiting[client];
      });
    }
    EXPECT_GT(started[1], 10);
    // Several slots are given at a time, but queues are filled between steps only.
    EXPECT_NEAR(static_cast<double>(started[1]), static_cast<double>(started[3]),
                0.25 * static_cast<double>(started[3]) + 4);
    EXPECT_NEAR(static_cast<double>(started[2]), static_cast<double>(started[3]),
                0.25 * static_cast<double>(started[3]) + 4);
  }
}

// Key 1 always asks for the most urgent priority, key 2 for the least urgent.
TEST(Fairness, NoPriorityOfOneKeyDelaysAnotherByMoreThanItsTurn) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    Traffic traffic(seed);
    for (int i = 0; i < 20; ++i) traffic.Add(1, std::numeric_limits<int>::min(), 1);
    for (int64_t i = traffic.Pick(0, 10); i > 0; --i) traffic.Step([](RequestId) {});
    const uint64_t waiting = traffic.Add(2, std::numeric_limits<int>::max(), 1);
    int overtaken = 0;
    bool has_started = false;
    for (int step = 0; step < 1000 && !has_started; ++step) {
      traffic.Add(1, std::numeric_limits<int>::min(), 1);
      traffic.Step([&](RequestId id) {
        has_started = has_started || id.value == waiting;
        overtaken += has_started ? 0 : 1;
      });
      ASSERT_LE(overtaken, 1);
    }
    ASSERT_TRUE(has_started) << "the other key starved";
  }
}

TEST(Fairness, PriorityOrdersAKeysOwnRequests) {
  Traffic traffic(1);
  for (int i = 0; i < 20; ++i) traffic.Add(1, 0, 1);
  const uint64_t low = traffic.Add(1, 5, 1);
  const uint64_t high = traffic.Add(1, -5, 1);
  std::vector<uint64_t> order;
  for (int step = 0; step < 4000 && !traffic.sent.empty(); ++step) {
    traffic.Step([&](RequestId id) { order.push_back(id.value); });
  }
  ASSERT_EQ(order.size(), 22u);
  EXPECT_EQ(order.front(), high);
  EXPECT_EQ(order.back(), low);
}

}  // namespace
}  // namespace tandem::engine
