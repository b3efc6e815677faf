#include "server/batches/batches.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "server/batches/batch_json.h"
#include "server/batches/batch_request.h"
#include "server/database/database.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

using TestJson = nlohmann::ordered_json;

// Batches over a route that answers when the test says so.
class BatchesTest : public testing::Test {
 protected:
  BatchesTest() { Open(); }
  ~BatchesTest() override { Close(); }

  void Open() {
    store_ = std::make_unique<BatchStore>(dir_.path());
    files_ = std::make_unique<FileStore>(FileStore::Options{
        .data_dir = dir_.path(),
        .is_in_use = [this](const std::string& id) { return store_->UsesFile(id); }});
    Batches::Options options;
    options.data_dir = dir_.path();
    options.max_in_flight = 3;
    options.max_line_bytes = 1 << 20;
    options.authorize = [this](const Batch&, Request&) -> bool {
      return is_key_valid_ && n_authorizations_-- > 0;
    };
    options.on_line = [this](const Request&) { ++n_started_; };
    options.failure = Failure;
    options.now = [this]() -> int64_t { return now_; };
    batches_ = std::make_unique<Batches>(std::move(options), *store_, *files_, router_, detached_);
  }
  void Close() {
    if (batches_) batches_->Stop();
    batches_.reset();
    files_.reset();
    store_.reset();
    const std::lock_guard lock(mutex_);
    held_.clear();
  }

  static Response Failure(const Error& error, const std::string&) {
    return Response{500, TestJson{{"error", error.what()}}.dump(), "application/json", {}};
  }
  // The route of the lines: answers at once, or keeps the writer.
  void Answer(Request request, const ResponseWriter& writer) {
    const std::string prompt = TestJson::parse(request.body).value("prompt", "");
    EXPECT_TRUE(request.is_batch_line);
    if (prompt == "throw") throw Error(ErrorCode::kInternal, "a bug");
    if (prompt == "busy once" && n_busy_++ == 0) {
      return writer.Send(
          Response{503, "{}", "application/json", {{"retry-after-ms", "1"}}, "server_overloaded"});
    }
    {
      const std::lock_guard lock(mutex_);
      ++n_runs_[prompt];
      if (is_holding_) {
        held_.push_back(writer);
        most_held_ = std::max(most_held_, held_.size());
        arrived_.notify_all();
        return;
      }
    }
    writer.Post([writer, prompt] { writer.Json(200, TestJson{{"text", prompt}}.dump()); });
  }
  void WaitUntilHeld(size_t n) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [&] { return held_.size() >= n; });
  }
  void StopHolding() {
    std::vector<ResponseWriter> held;
    {
      const std::lock_guard lock(mutex_);
      is_holding_ = false;
      held.swap(held_);
    }
    for (const ResponseWriter& writer : held) writer.Json(200, "{}");
  }

  std::string Upload(const std::vector<std::string>& prompts) {
    TemporaryFile file = files_->BeginFile();
    for (size_t i = 0; i < prompts.size(); ++i) {
      file.Write(TestJson{{"custom_id", "c" + std::to_string(i)},
                          {"method", "POST"},
                          {"url", "/v1/completions"},
                          {"body", {{"prompt", prompts[i]}}}}
                     .dump() +
                 "\n");
    }
    return files_->Add(std::move(file), {"in.jsonl", "batch", {}}).id;
  }
  Batch Begin(const std::vector<std::string>& prompts) {
    return batches_->Create({.input_file_id = Upload(prompts), .endpoint = "/v1/completions"},
                            std::nullopt);
  }
  // Spins until the batch has ended; only the test's timeout limits it.
  Batch WaitForEnd(const Batch& batch) {
    for (;;) {
      const std::optional<Batch> now = batches_->Find(batch.id);
      if (now && IsTerminal(now->status)) return *now;
      std::this_thread::yield();
    }
  }
  // custom_id and text, status or error code of each line.
  std::vector<std::string> Lines(const std::optional<std::string>& file_id) {
    std::vector<std::string> out;
    if (!file_id) return out;
    std::ifstream file(files_->PathOf(*file_id));
    for (std::string text; std::getline(file, text);) {
      const TestJson line = TestJson::parse(text);
      std::string what;
      if (!line["error"].is_null()) {
        what = line["error"]["code"];
      } else if (line["response"]["status_code"] == 200) {
        what = line["response"]["body"].value("text", "-");
      } else {
        what = std::to_string(line["response"]["status_code"].get<int>());
      }
      out.push_back(line["custom_id"].get<std::string>() + " " + what);
    }
    return out;
  }
  using Texts = std::vector<std::string>;

  tests::TemporaryDir dir_;
  std::mutex mutex_;  // guards the next four
  std::condition_variable arrived_;
  std::vector<ResponseWriter> held_;
  std::map<std::string, int> n_runs_;
  size_t most_held_ = 0;
  bool is_holding_ = false;
  std::atomic<int> n_busy_{0};
  std::atomic<int> n_started_{0};
  std::atomic<bool> is_key_valid_{true};
  std::atomic<int> n_authorizations_{1 << 20};  // until the key is revoked
  std::atomic<int64_t> now_{1'000'000};
  const Router router_{{Route{.method = "POST",
                              .pattern = "/v1/completions",
                              .handler = [this](Request request, ResponseWriter writer) {
                                Answer(std::move(request), writer);
                              }}}};
  DetachedRequests detached_{Failure};
  std::unique_ptr<BatchStore> store_;
  std::unique_ptr<FileStore> files_;
  std::unique_ptr<Batches> batches_;
};

TEST_F(BatchesTest, AnswersAndFaultsGoToTheirFilesInTheOrderOfTheInput) {
  const Batch ended = WaitForEnd(Begin({"a", "throw", "b", "busy once", "c"}));

  EXPECT_EQ(ended.status, BatchStatus::kCompleted);
  EXPECT_EQ(Lines(ended.output_file_id), (Texts{"c0 a", "c2 b", "c3 busy once", "c4 c"}));
  EXPECT_EQ(Lines(ended.error_file_id), Texts{"c1 500"});
  EXPECT_EQ(ended.counts.completed, 4);
  EXPECT_EQ(ended.counts.failed, 1);
  Close();  // joins the thread that removes the file of results
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "batches"));
}

TEST_F(BatchesTest, AtMostTheBoundOfLinesIsInFlightAcrossBatches) {
  is_holding_ = true;
  const Batch a = Begin(Texts(20, "a"));
  const Batch b = Begin(Texts(20, "b"));
  WaitUntilHeld(3);
  EXPECT_EQ(n_started_, 3);
  StopHolding();

  EXPECT_EQ(WaitForEnd(a).counts.completed, 20);
  EXPECT_EQ(WaitForEnd(b).counts.completed, 20);
  EXPECT_EQ(most_held_, 3u);
}

TEST_F(BatchesTest, ACancelledBatchKeepsItsResultsAndNamesTheOtherLines) {
  is_holding_ = true;
  const Batch batch = Begin({"a", "b", "c", "d"});
  WaitUntilHeld(3);
  EXPECT_EQ(batches_->Cancel(batch.id).status, BatchStatus::kCancelling);
  const Batch ended = WaitForEnd(batch);

  EXPECT_EQ(ended.status, BatchStatus::kCancelled);
  EXPECT_EQ(Lines(ended.output_file_id), Texts{});
  EXPECT_EQ(Lines(ended.error_file_id).size(), 4u);
  EXPECT_EQ(Lines(ended.error_file_id)[0], "c0 batch_cancelled");
  for (const ResponseWriter& writer : held_) EXPECT_TRUE(writer.disconnected());
  const auto again = ErrorOf([&] { batches_->Cancel(batch.id); });
  ASSERT_TRUE(again);
  EXPECT_EQ(again->reason(), "batch_not_active");
}

TEST_F(BatchesTest, ABatchThatWaitsForAThreadIsCancelledAtOnce) {
  is_holding_ = true;
  for (int i = 0; i < 8; ++i) Begin({"a", "b"});
  const Batch waiting = Begin({"c"});
  while (batches_->Find(waiting.id)->status != BatchStatus::kInProgress) std::this_thread::yield();

  batches_->Cancel(waiting.id);

  EXPECT_EQ(WaitForEnd(waiting).status, BatchStatus::kCancelled);
}

TEST_F(BatchesTest, ABatchExpiresAfterItsWindow) {
  is_holding_ = true;
  const Batch batch = Begin({"a", "b"});
  WaitUntilHeld(2);
  now_ += 24 * 3600;
  const Batch ended = WaitForEnd(batch);

  EXPECT_EQ(ended.status, BatchStatus::kExpired);
  EXPECT_EQ(ended.times.expired, now_.load());
  EXPECT_EQ(Lines(ended.error_file_id), (Texts{"c0 batch_expired", "c1 batch_expired"}));
}

TEST_F(BatchesTest, ABatchEndsWithItsKey) {
  is_holding_ = true;
  const Batch batch = Begin({"a", "b"});
  WaitUntilHeld(2);
  is_key_valid_ = false;
  const Batch ended = WaitForEnd(batch);

  EXPECT_EQ(ended.status, BatchStatus::kFailed);
  ASSERT_EQ(ended.errors.size(), 1u);
  EXPECT_EQ(ended.errors[0].code, "invalid_api_key");
  EXPECT_EQ(Lines(ended.error_file_id), (Texts{"c0 invalid_api_key", "c1 invalid_api_key"}));
}

// The look at the batch is the first authorization, its first line the second.
TEST_F(BatchesTest, ABatchEndsWhenItsKeyIsRevokedBeforeALineStarts) {
  n_authorizations_ = 1;
  const Batch ended = WaitForEnd(Begin({"a", "b"}));

  EXPECT_EQ(ended.status, BatchStatus::kFailed);
  EXPECT_EQ(n_started_, 0);
  EXPECT_EQ(Lines(ended.error_file_id), (Texts{"c0 invalid_api_key", "c1 invalid_api_key"}));
}

TEST_F(BatchesTest, ARestartRunsOnlyTheLinesWithoutAResult) {
  const Batch batch = [&] {
    is_holding_ = true;
    const Batch begun = Begin({"a", "b", "c", "d", "e"});
    WaitUntilHeld(3);
    held_[1].Json(200, R"({"text":"b"})");
    WaitUntilHeld(4);  // the next line started, so the result of the second is on disk
    return begun;
  }();
  Close();
  is_holding_ = false;
  Open();
  const Batch ended = WaitForEnd(batch);

  EXPECT_EQ(ended.status, BatchStatus::kCompleted);
  EXPECT_EQ(Lines(ended.output_file_id), (Texts{"c0 a", "c1 b", "c2 c", "c3 d", "c4 e"}));
  EXPECT_EQ(n_runs_["b"], 1);
  EXPECT_EQ(n_runs_["a"], 2);
}

// The table lists the result file although the insertion of its row throws.
TEST_F(BatchesTest, AResultFileWhoseRowIsStoredWithoutAnAnswerKeepsItsBytes) {
  {
    Database database(dir_ / "tandem.db");
    Query(database.Prepare(
              "CREATE TRIGGER lost AFTER INSERT ON files WHEN NEW.purpose = 'batch_output' "
              "BEGIN SELECT RAISE(FAIL, 'the answer is lost'); END"))
        .Next();
  }
  const Batch ended = WaitForEnd(Begin({"a", "b"}));

  EXPECT_EQ(ended.status, BatchStatus::kCompleted);
  EXPECT_EQ(Lines(ended.output_file_id), (Texts{"c0 a", "c1 b"}));
}

TEST_F(BatchesTest, AStartRemovesWhatEndedBatchesHaveLeft) {
  const Batch ended = WaitForEnd(Begin({"a"}));
  is_holding_ = true;
  const Batch running = Begin({"b"});
  WaitUntilHeld(1);
  Close();
  const auto path_of = [&](const std::string& name) { return dir_ / "batches" / name; };
  const std::vector<std::string> kept = {running.id + ".results", running.id + ".results.next-1",
                                         "batch_README"};
  const std::vector<std::string> left = {ended.id + ".results", ended.id + ".results.next-1",
                                         "batch_unknown.results", "batch_unknown.results.next-1"};
  for (const auto& names : {kept, left}) {
    for (const std::string& name : names) std::ofstream(path_of(name), std::ios::app) << "";
  }

  Open();

  for (const std::string& name : kept) EXPECT_TRUE(std::filesystem::exists(path_of(name))) << name;
  for (const std::string& name : left) EXPECT_FALSE(std::filesystem::exists(path_of(name))) << name;
}

TEST_F(BatchesTest, AnInputInUseStaysUntilTheBatchHasEnded) {
  is_holding_ = true;
  const Batch batch = Begin({"a"});
  const auto error = ErrorOf([&] { files_->Delete(batch.input_file_id); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->reason(), "in_use");
  WaitUntilHeld(1);
  StopHolding();
  WaitForEnd(batch);
  files_->Delete(batch.input_file_id);
}

TEST_F(BatchesTest, AnInvalidInputFailsWithoutRunningALine) {
  TemporaryFile file = files_->BeginFile();
  file.Write("{\n");
  const std::string id = files_->Add(std::move(file), {"in.jsonl", "batch", {}}).id;
  const Batch ended = WaitForEnd(
      batches_->Create({.input_file_id = id, .endpoint = "/v1/completions"}, std::nullopt));

  EXPECT_EQ(ended.status, BatchStatus::kFailed);
  EXPECT_EQ(ended.errors.size(), 1u);
  EXPECT_EQ(n_started_, 0);
}

TEST_F(BatchesTest, AnEndpointThatTheServerLacksIsRefused) {
  const std::string id = Upload({"a"});
  const auto error = ErrorOf(
      [&] { batches_->Create({.input_file_id = id, .endpoint = "/v1/responses"}, std::nullopt); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param(), "endpoint");
}

TEST(BatchJsonTest, AStoredBatchComesBackWhole) {
  Batch batch;
  batch.id = "batch_1";
  batch.owner = -5;
  batch.status = BatchStatus::kFinalizing;
  batch.endpoint = "/v1/embeddings";
  batch.input_file_id = "file-1";
  batch.metadata = {{"z", "1"}, {"a", "2"}};
  batch.times.created = 7;
  batch.times.finalizing = 8;
  batch.counts = {3, 2, 1};
  batch.usage = {1, 2, 3, 4};
  batch.errors = {{.code = "c", .message = "m \xff", .line = 3}};
  batch.outcome = BatchStatus::kExpired;
  batch.output_expires_after_s = 3600;
  batch.planned_output_id = "file-2";

  const std::string stored = StoredBatch(batch);
  const Batch read = ParseBatch(stored);

  EXPECT_EQ(StoredBatch(read), stored);
  EXPECT_EQ(read.owner, -5);
  EXPECT_EQ(read.metadata, batch.metadata);
  EXPECT_EQ(read.outcome, BatchStatus::kExpired);
  EXPECT_EQ(read.errors[0].line, 3);
  for (const char* bad : {"", "{}", "[]", R"({"batch":{},"rest":{}})"}) {
    EXPECT_TRUE(ErrorOf({ErrorCode::kDataLoss}, [&] { ParseBatch(bad); })) << bad;
  }
}

TEST(BatchRequestTest, FaultsNameTheirField) {
  const auto param_of = [](const std::string& text) {
    const auto error = ErrorOf([&] { ParseNewBatch(text); });
    return error ? error->param() : "accepted";
  };
  const std::string rest = R"("input_file_id":"f","completion_window":"24h")";
  EXPECT_EQ(param_of("{" + rest + R"(,"endpoint":"/v1/responses"})"), "accepted");
  EXPECT_EQ(param_of("{" + rest + R"(,"endpoint":"/v1/moderations"})"), "endpoint");
  EXPECT_EQ(param_of("{" + rest + "}"), "endpoint");
  EXPECT_EQ(param_of("{" + rest + R"(,"endpoint":"/v1/embeddings","metadata":[]})"), "metadata");
  EXPECT_EQ(ParseNewBatch("{" + rest + R"(,"endpoint":"/v1/embeddings","x":1})").ignored,
            std::vector<std::string>{"x"});
}

}  // namespace
}  // namespace tandem::server
