// Several servers of one PostgreSQL database and one data directory. They need
// TANDEM_TEST_POSTGRES: tests/cluster/with_postgres sets it.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/attempt.h"
#include "server/batches/batches.h"
#include "server/database/database_unavailable.h"
#include "server/database/replica_lease.h"
#include "tests/server/database/lossy_relay.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

class BatchReplicas : public testing::Test {
 protected:
  // One server: its lines are held until Release.
  class Replica {
   public:
    Replica(const std::filesystem::path& dir, const DatabaseSource& source, std::string name)
        : name_(std::move(name)),
          store_(dir, source, name_),
          files_({.data_dir = dir,
                  .shared = source,
                  .is_in_use = [this](const std::string& id) { return store_.UsesFile(id); }}),
          router_({Route{.method = "POST",
                         .pattern = "/v1/completions",
                         .handler = [this](Request, ResponseWriter writer) { Answer(writer); }}}) {
      Batches::Options options;
      options.data_dir = dir;
      options.max_in_flight = 1;
      options.max_line_bytes = 1 << 20;
      options.authorize = [](const Batch&, Request&) { return true; };
      options.on_line = [this](const Request&) {
        is_asleep_ = sleeps_.load();
        while (sleeps_) std::this_thread::yield();
        is_asleep_ = false;
      };
      options.failure = Failure;
      batches_ = std::make_unique<Batches>(std::move(options), store_, files_, router_, detached_);
    }
    ~Replica() {
      Wake();
      batches_->Stop();
    }

    Batches& batches() { return *batches_; }
    BatchStore& store() { return store_; }
    FileStore& files() { return files_; }
    int n_started() const { return n_started_; }
    // The thread of a batch stops before its next line, until Wake.
    void Sleep() { sleeps_ = true; }
    bool is_asleep() const { return is_asleep_; }
    void Wake() { sleeps_ = false; }
    // Answers the held line; the next one comes then.
    void Release() {
      std::optional<ResponseWriter> held;
      {
        const std::lock_guard lock(mutex_);
        held.swap(held_);
      }
      if (held) held->Json(200, nlohmann::json{{"by", name_}}.dump());
    }

   private:
    static Response Failure(const Error& error, const std::string&) {
      return Response{500, nlohmann::json{{"error", error.what()}}.dump(), "application/json", {}};
    }
    void Answer(const ResponseWriter& writer) {
      const std::lock_guard lock(mutex_);
      held_ = writer;
      ++n_started_;
    }

    const std::string name_;
    std::mutex mutex_;  // guards the next
    std::optional<ResponseWriter> held_;
    std::atomic<int> n_started_{0};
    std::atomic<bool> sleeps_{false};
    std::atomic<bool> is_asleep_{false};
    BatchStore store_;
    FileStore files_;
    const Router router_;
    DetachedRequests detached_{Failure};
    std::unique_ptr<Batches> batches_;
  };

  void SetUp() override {
    const char* url = std::getenv("TANDEM_TEST_POSTGRES");
    if (url == nullptr) GTEST_SKIP() << "TANDEM_TEST_POSTGRES is not set";
    source_.url = url;
    static constexpr Schema kNone{"none", 0, {}};
    Database database(source_, kNone);
    for (const char* sql : {"DROP SCHEMA public CASCADE", "CREATE SCHEMA public"}) {
      Query(database.Prepare(sql)).Next();
    }
  }

  void TakeLease(const std::string& name) {
    Database database(source_);
    RenewReplicaLease(database, name);
  }
  std::unique_ptr<Replica> Start(const std::string& name) { return Start(name, source_); }
  std::unique_ptr<Replica> Start(const std::string& name, const DatabaseSource& source) {
    TakeLease(name);
    return std::make_unique<Replica>(dir_.path(), source, name);
  }
  void Sql(const std::string& text) {
    Database database(source_);
    Query(database.Prepare(text)).Next();
  }
  int64_t Number(const std::string& sql) {
    Database database(source_);
    Query query = database.Prepare(sql);
    return query.Next() ? query.Int() : -1;
  }
  // To the others, the replica seems to have ended.
  void Lose(const std::string& name) {
    Sql("UPDATE leases SET expires_at = 0 WHERE name = 'replica/" + name + "'");
  }
  void KeepLease(const std::string& name) {
    Sql("UPDATE leases SET expires_at = {now_ms} + 600000 WHERE name = 'replica/" + name + "'");
  }

  static NewBatch Upload(Replica& replica, int n_lines) {
    TemporaryFile file = replica.files().BeginFile();
    for (int i = 0; i < n_lines; ++i) {
      file.Write(nlohmann::json{{"custom_id", "c" + std::to_string(i)},
                                {"method", "POST"},
                                {"url", "/v1/completions"},
                                {"body", nlohmann::json::object()}}
                     .dump() +
                 "\n");
    }
    const std::string id = replica.files().Add(std::move(file), {"in.jsonl", "batch", {}}).id;
    return {.input_file_id = id, .endpoint = "/v1/completions"};
  }
  static Batch Begin(Replica& replica, int n_lines) {
    return replica.batches().Create(Upload(replica, n_lines), std::nullopt);
  }
  // Spins; only the test's timeout limits it.
  static void Until(const std::function<bool()>& condition) {
    while (!condition()) std::this_thread::yield();
  }
  // Answers the replica's lines until the batch has ended.
  static Batch RunToTheEnd(Replica& replica, const Batch& batch) {
    for (;;) {
      replica.Release();
      const Batch now = replica.store().Find(batch.id).value();
      if (IsTerminal(now.status)) return now;
    }
  }
  // custom_id and the replica of each answered line.
  static std::vector<std::string> Answers(Replica& replica, const Batch& ended) {
    std::ifstream file(replica.files().PathOf(ended.output_file_id.value()));
    std::vector<std::string> out;
    for (std::string text; std::getline(file, text);) {
      const auto line = nlohmann::json::parse(text);
      out.push_back(line["custom_id"].get<std::string>() + " " +
                    line["response"]["body"]["by"].get<std::string>());
    }
    return out;
  }

  tests::TemporaryDir dir_;
  DatabaseSource source_;
};

// Every change of the table wakes all replicas, which look for batches to adopt.
TEST_F(BatchReplicas, ALookForLeftBatchesChangesNothing) {
  const auto a = Start("a");
  const auto b = Start("b");
  Begin(*a, 2);
  Until([&] { return a->n_started() == 1; });
  const std::string count = "SELECT count FROM tandem_changes WHERE subject = 'batches'";
  const int64_t before = Number(count);

  for (int i = 0; i < 5; ++i) {
    a->batches().OnStoreChanged();
    b->batches().OnStoreChanged();
  }

  EXPECT_EQ(Number(count), before);
  EXPECT_EQ(b->n_started(), 0);
}

TEST_F(BatchReplicas, TheBatchOfAnEndedReplicaContinuesAtAnother) {
  auto a = Start("a");
  const Batch batch = Begin(*a, 3);
  Until([&] { return a->n_started() == 1; });
  a->Release();
  Until([&] { return a->n_started() == 2; });  // so the first result is on disk
  a.reset();
  const auto b = Start("b");
  KeepLease("b");
  Lose("a");

  b->batches().OnStoreChanged();
  const Batch ended = RunToTheEnd(*b, batch);

  EXPECT_EQ(ended.status, BatchStatus::kCompleted);
  EXPECT_EQ(Answers(*b, ended), (std::vector<std::string>{"c0 a", "c1 b", "c2 b"}));
}

// As after a long sleep of its machine: it works on while another one has its batch.
TEST_F(BatchReplicas, AReplicaThatHasLostItsBatchStopsAndWritesNothingMore) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Batch batch = Begin(*a, 4);
  Until([&] { return a->n_started() == 1; });
  a->Release();
  Until([&] { return a->n_started() == 2; });
  KeepLease("b");
  Lose("a");
  b->batches().OnStoreChanged();
  Until([&] { return b->n_started() == 1; });

  a->Release();  // its answer comes too late
  const auto refused = ErrorOf([&] { a->store().UpdateOurs(batch, [](Batch&) {}); });
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->reason(), kBatchLostReason);
  const auto unknown = ErrorOf([&] { a->store().FindOurs(batch); });
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->reason(), kBatchLostReason);
  const Batch ended = RunToTheEnd(*b, batch);

  EXPECT_EQ(ended.status, BatchStatus::kCompleted);
  EXPECT_EQ(Answers(*b, ended), (std::vector<std::string>{"c0 a", "c1 b", "c2 b", "c3 b"}));
  EXPECT_LE(a->n_started(), 3);  // at most the round that had begun
  const auto ended_elsewhere = ErrorOf([&] { a->store().UpdateOurs(batch, [](Batch&) {}); });
  ASSERT_TRUE(ended_elsewhere);
  EXPECT_EQ(ended_elsewhere->reason(), kBatchLostReason);
}

// The results of another replica are in a new file of the same name.
TEST_F(BatchReplicas, AReplicaThatGetsItsBatchBackContinuesFromTheOthersResults) {
  const auto a = Start("a");
  auto b = Start("b");
  const Batch batch = Begin(*a, 4);
  Until([&] { return a->n_started() == 1; });
  a->Sleep();
  a->Release();
  Until([&] { return a->is_asleep(); });
  KeepLease("b");
  Lose("a");
  b->batches().OnStoreChanged();
  Until([&] { return b->n_started() == 1; });
  b->Release();
  Until([&] { return b->n_started() == 2; });
  b.reset();
  KeepLease("a");
  Lose("b");

  a->batches().OnStoreChanged();
  a->Wake();
  const Batch ended = RunToTheEnd(*a, batch);

  EXPECT_EQ(ended.status, BatchStatus::kCompleted);
  EXPECT_EQ(Answers(*a, ended), (std::vector<std::string>{"c0 a", "c1 b", "c2 a", "c3 a"}));
}

TEST_F(BatchReplicas, OneThatIsNotSeenAfterAGapKeepsItsBatch) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Batch batch = Begin(*a, 1);
  Until([&] { return a->n_started() == 1; });
  Sql("UPDATE leases SET expires_at = 0");  // the database was away

  EXPECT_TRUE(b->store().Adopt().empty());
  {
    Database database(source_);
    RenewReplicaLease(database, "b");
  }
  EXPECT_TRUE(b->store().Adopt().empty());
  EXPECT_TRUE(a->store().IsOurs(batch.id));
  EXPECT_EQ(RunToTheEnd(*a, batch).status, BatchStatus::kCompleted);
}

// The database stores the adoption, but its answer is lost.
TEST_F(BatchReplicas, AnAdoptionWithoutAnAnswerIsFoundByTheNextLook) {
  auto a = Start("a");
  const Batch batch = Begin(*a, 1);
  Until([&] { return a->n_started() == 1; });
  a.reset();
  tests::LossyRelay relay(source_.url);
  BatchStore b(dir_.path(), {.url = relay.url()}, "b");
  TakeLease("b");
  KeepLease("b");
  Lose("a");

  relay.LoseNextCommit();
  const auto error = ErrorOf([&] { b.Adopt(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), kDatabaseUnavailableReason);
  EXPECT_TRUE(b.IsOurs(batch.id));
  EXPECT_EQ(b.Find(batch.id)->adoptions, 1) << "earlier work of b must stop";

  const std::vector<Batch> adopted = b.Adopt();
  ASSERT_EQ(adopted.size(), 1u);
  EXPECT_EQ(adopted[0].id, batch.id);
  EXPECT_EQ(adopted[0].adoptions, 1);
  EXPECT_TRUE(b.Adopt().empty());
}

TEST_F(BatchReplicas, ABatchThatIsStoredWithoutAnAnswerRuns) {
  tests::LossyRelay relay(source_.url);
  const auto a = Start("a", {.url = relay.url()});
  const NewBatch about = Upload(*a, 2);

  relay.LoseNextCommit();
  const auto error = ErrorOf([&] { a->batches().Create(about, std::nullopt); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), kDatabaseUnavailableReason);
  const std::vector<Batch> stored = a->store().List("", 10, std::nullopt).batches;
  ASSERT_EQ(stored.size(), 1u);
  a->batches().OnStoreChanged();
  const Batch ended = RunToTheEnd(*a, stored[0]);

  EXPECT_EQ(ended.status, BatchStatus::kCompleted);
  EXPECT_EQ(Answers(*a, ended), (std::vector<std::string>{"c0 a", "c1 a"}));
}

// The bytes of a result file that only the row names would be lost.
TEST_F(BatchReplicas, AResultFileKeepsItsBytesThoughItsReplicaIsRefused) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Batch batch = Begin(*a, 1);
  const Batch ended = RunToTheEnd(*a, batch);

  TemporaryFile late = b->files().BeginFile();
  late.Write("late");
  EXPECT_TRUE(ErrorOf([&] {
    b->files().Add(std::move(late), {.filename = "x",
                                     .purpose = "batch_output",
                                     .expires_after_s = {},
                                     .id = ended.output_file_id.value()});
  }));

  EXPECT_TRUE(std::filesystem::exists(a->files().PathOf(ended.output_file_id.value())));
}

TEST_F(BatchReplicas, AStartRemovesOnlyWhatEndedBatchesHaveLeft) {
  const auto a = Start("a");
  const Batch ended = RunToTheEnd(*a, Begin(*a, 1));
  const int n_started = a->n_started();
  const Batch running = Begin(*a, 1);
  Until([&] { return a->n_started() > n_started; });
  const std::filesystem::path copy = dir_ / "batches" / (ended.id + ".results.next-1");
  std::ofstream(copy) << "";

  const auto b = Start("b");

  EXPECT_FALSE(std::filesystem::exists(copy));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "batches" / (running.id + ".results")));
}

TEST_F(BatchReplicas, AnyReplicaCancelsABatch) {
  const auto a = Start("a");
  const auto b = Start("b");
  const Batch batch = Begin(*a, 2);
  Until([&] { return a->n_started() == 1; });

  EXPECT_EQ(b->batches().Cancel(batch.id).status, BatchStatus::kCancelling);

  EXPECT_EQ(RunToTheEnd(*a, batch).status, BatchStatus::kCancelled);
  EXPECT_EQ(b->n_started(), 0);
}

}  // namespace
}  // namespace tandem::server
