#include "server/models/model_host.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/formats/model_dir.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::server {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{60};  // a test that waits this long has failed

// One thread waits here until the test opens the gate.
class Gate {
 public:
  // Calls `ask` while it waits; an exception from `ask` ends the waiting.
  void Pass(const std::function<void()>& ask = [] {}) {
    std::unique_lock lock(mutex_);
    is_reached_ = true;
    changed_.notify_all();
    while (!is_open_) {
      lock.unlock();
      ask();
      lock.lock();
      changed_.wait_for(lock, milliseconds(1));
    }
  }
  void WaitUntilReached() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return is_reached_; }));
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards both
  std::condition_variable changed_;
  bool is_reached_ = false;
  bool is_open_ = false;
};

// The job with which a load or unload ends.
class Ended {
 public:
  ModelHost::OnEnd callback() const {
    return [promise = promise_](const Job& job) { promise->set_value(job); };
  }
  Job Wait() {
    auto future = promise_->get_future();
    if (future.wait_for(kPatience) == std::future_status::ready) return future.get();
    ADD_FAILURE() << "the job does not end";
    return {};
  }

 private:
  // Shared: the setter may still be in set_value when the test resumes.
  std::shared_ptr<std::promise<Job>> promise_ = std::make_shared<std::promise<Job>>();
};

bool WaitFor(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

// Models are real and tiny; the test decides when they are made.
class ModelHostTest : public testing::Test {
 protected:
  static constexpr int64_t kBytes = 1000;  // the size of a model in the ledger

  ModelHostTest() {
    tests::WriteTinyModel(dir_.path(), {});
    options_.threads = 1;
    options_.kv_cache_bytes = 1 << 20;
    loaded_ = engine::OpenModel(engine::ModelDir::Open(dir_.path()), options_, "");
    jobs_ = std::make_unique<JobSupervisor>(JobStore::Open(dir_ / "data"), JobSupervisorOptions{},
                                            nullptr);
    host_ = std::make_unique<ModelHost>(*registry_, ledger_, *jobs_, Maker());
  }
  ~ModelHostTest() override {
    host_->Stop();
    jobs_.reset();
    registry_.reset();
  }

  ModelHost::Maker Maker() {
    ModelHost::Maker maker;
    maker.plan = [this](const ModelLoadSpec& spec) {
      if (on_plan_) on_plan_(spec);
      engine::MemoryPlan plan;
      plan.least.weights = kBytes;
      return plan;
    };
    maker.make = [this](const ModelLoadSpec& spec, MemoryReservation memory,
                        const std::function<void(double)>& progress) {
      if (on_make_) on_make_(spec, progress);
      std::shared_ptr<ServedModel> model = Named(spec.id);
      model->pinned = spec.pinned;
      model->idle_unload_s = spec.idle_unload_s;
      model->memory = std::move(memory);
      return model;
    };
    return maker;
  }
  std::shared_ptr<ServedModel> Named(const std::string& id) {
    auto model = std::make_shared<ServedModel>();
    model->id = id;
    model->engine = std::make_shared<engine::Engine>(loaded_, options_);
    return model;
  }
  // Makes the loading of models with this name wait at the gate.
  void Hold(const std::string& id, Gate& gate) {
    on_make_ = [&gate, id](const ModelLoadSpec& spec, const std::function<void(double)>& progress) {
      if (spec.id == id) gate.Pass([&] { progress(0.5); });
    };
  }
  // Publishes a tuned model as a successful job does.
  void PublishTuned(const std::string& id, const std::vector<std::string>& aliases = {}) {
    std::shared_ptr<ServedModel> model = Named(id);
    model->owned_by = "user";
    std::vector<NameClaim> names;
    names.push_back(registry_->TryClaimTuned(id).value());
    for (const std::string& alias : aliases) names.push_back(registry_->Claim(alias));
    registry_->Publish(model, std::move(names));
  }

  Job Load(const std::string& id, ModelHost::OnEnd on_end = nullptr, int64_t idle_unload_s = 0) {
    ModelLoadSpec spec;
    spec.source = "/nowhere";
    spec.id = id;
    spec.idle_unload_s = idle_unload_s;
    return host_->Load(spec, "{}", std::move(on_end));
  }
  Job Unload(const std::string& name, ModelHost::OnEnd on_end = nullptr) {
    return host_->Unload(name, false, "{}", std::move(on_end));
  }
  Job WaitForEnd(const Job& job) {
    EXPECT_TRUE(WaitFor([&] { return IsFinished(jobs_->Find(job.id)->status); }));
    return *jobs_->Find(job.id);
  }
  void Serve(const std::string& id) {
    EXPECT_EQ(WaitForEnd(Load(id)).status, JobStatus::kSucceeded);
  }
  // The reason and the message of the error that `call` throws.
  static std::string Refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      const std::string reason = error.reason().empty() && error.code() == ErrorCode::kAlreadyExists
                                     ? "already_exists"
                                     : error.reason();
      return reason + ": " + error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  tests::TemporaryDir dir_;
  engine::EngineOptions options_;
  engine::LoadedModel loaded_;
  // Set only while the host is idle.
  std::function<void(const ModelLoadSpec&)> on_plan_;
  std::function<void(const ModelLoadSpec&, const std::function<void(double)>&)> on_make_;

  MemoryLedger ledger_{10 * kBytes};
  std::unique_ptr<JobSupervisor> jobs_;
  std::unique_ptr<ModelHost> host_;
  std::unique_ptr<ModelRegistry> registry_ = std::make_unique<ModelRegistry>(false);
};

TEST_F(ModelHostTest, AModelComesAndGoes) {
  Ended loaded;
  const Job load = Load("a", loaded.callback());
  EXPECT_EQ(loaded.Wait().id, load.id);
  EXPECT_TRUE(registry_->Contains("a"));
  EXPECT_EQ(ledger_.used_bytes(), kBytes);

  Ended unloaded;
  const Job unload = Unload("a", unloaded.callback());
  EXPECT_EQ(unload.status, JobStatus::kRunning);
  const Job ended = unloaded.Wait();

  EXPECT_EQ(ended.id, unload.id);
  EXPECT_EQ(ended.result_json, R"({"model":"a","freed_bytes":1000})");
  EXPECT_EQ(ledger_.used_bytes(), 0);
  EXPECT_TRUE(host_->List().served.empty());
  EXPECT_TRUE(host_->List().others.empty());
}

TEST_F(ModelHostTest, ACancelledLoadDoesNotWaitForItsTurn) {
  Gate gate;
  Hold("a", gate);
  const Job first = Load("a");
  gate.WaitUntilReached();
  std::vector<Job> ended;
  const Job second = Load("b", [&](const Job& job) { ended.push_back(job); });
  EXPECT_EQ(ledger_.used_bytes(), 2 * kBytes);

  EXPECT_EQ(jobs_->Cancel(second.id).status, JobStatus::kCancelled);

  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].id, second.id);
  EXPECT_EQ(ledger_.used_bytes(), kBytes);
  const Job again = Load("b");
  EXPECT_EQ(jobs_->Find(first.id)->status, JobStatus::kRunning);
  gate.Open();
  EXPECT_EQ(WaitForEnd(again).status, JobStatus::kSucceeded);
  EXPECT_EQ(jobs_->Find(first.id)->status, JobStatus::kSucceeded);
}

TEST_F(ModelHostTest, ALoadUnderWayIsCancelled) {
  Gate gate;
  Hold("a", gate);
  const Job job = Load("a");
  gate.WaitUntilReached();

  jobs_->Cancel(job.id);

  EXPECT_EQ(WaitForEnd(job).status, JobStatus::kCancelled);
  EXPECT_FALSE(registry_->Contains("a"));
  EXPECT_FALSE(registry_->IsClaimed("a"));
  EXPECT_EQ(ledger_.used_bytes(), 0);
}

TEST_F(ModelHostTest, AModelLeavesForBeingIdleWhileAnotherLoads) {
  EXPECT_EQ(WaitForEnd(Load("idle", nullptr, 1)).status, JobStatus::kSucceeded);
  Gate gate;
  Hold("slow", gate);
  const Job slow = Load("slow");
  gate.WaitUntilReached();

  EXPECT_TRUE(WaitFor([&] { return !registry_->Contains("idle"); }));

  EXPECT_EQ(jobs_->Find(slow.id)->status, JobStatus::kRunning);
  gate.Open();
  EXPECT_EQ(WaitForEnd(slow).status, JobStatus::kSucceeded);
}

TEST_F(ModelHostTest, LoadsThatTheEndOfTheServerMeetsAreInterrupted) {
  Gate make;
  Hold("running", make);
  const Job running = Load("running");
  make.WaitUntilReached();
  const Job queued = Load("queued");
  Gate plan;
  on_plan_ = [&](const ModelLoadSpec&) { plan.Pass(); };
  Ended ended;
  std::thread accepting(
      [&] { EXPECT_EQ(Load("accepting", ended.callback()).status, JobStatus::kFailed); });
  plan.WaitUntilReached();

  host_->StopLoading();
  plan.Open();
  accepting.join();

  const Job accepted = ended.Wait();
  for (const Job& job : {*jobs_->Find(running.id), *jobs_->Find(queued.id), accepted}) {
    EXPECT_EQ(job.status, JobStatus::kFailed);
    ASSERT_TRUE(job.error);
    EXPECT_EQ(job.error->code, "interrupted");
  }
  EXPECT_EQ(ledger_.used_bytes(), 0);
  EXPECT_NE(Refusal([&] { Load("late"); }).find("shutting_down"), std::string::npos);
}

TEST_F(ModelHostTest, ANameBelongsToWhoeverAskedFirst) {
  Gate gate;
  Hold("a", gate);
  const Job load = Load("a");
  gate.WaitUntilReached();
  EXPECT_FALSE(registry_->TryClaimTuned("a")) << "nor does a job get it meanwhile";
  EXPECT_EQ(Refusal([&] { Load("a"); }),
            "already_exists: a model named 'a' is being loaded already: choose another id, or "
            "unload it first");
  EXPECT_EQ(Refusal([&] { Unload("a"); }),
            "in_use: model 'a' is still being loaded: cancel job " + load.id + " instead");
  gate.Open();
  WaitForEnd(load);
  EXPECT_NE(Refusal([&] { Load("a"); }).find("is served already"), std::string::npos);

  // The reverse order, before anything is planned.
  bool is_planned = false;
  on_plan_ = [&](const ModelLoadSpec&) { is_planned = true; };
  const auto claim = registry_->TryClaimTuned("b");
  EXPECT_NE(Refusal([&] { Load("b"); }).find("already_exists"), std::string::npos);
  EXPECT_FALSE(is_planned);
  EXPECT_EQ(Refusal([&] { Unload("b"); }), "in_use: model 'b' is still being loaded");
  EXPECT_EQ(Refusal([&] { Unload("c"); }),
            "model_not_found: model 'c' is not served here; served are: a");
}

TEST_F(ModelHostTest, ANameIsFreeAgainAfterAFailedLoad) {
  on_make_ = [](const ModelLoadSpec&, const std::function<void(double)>&) {
    throw Error(ErrorCode::kDataLoss, "rubbish");
  };
  const Job failed = WaitForEnd(Load("a"));
  EXPECT_EQ(failed.error->code, "bad_data");
  const ModelHost::Listing listing = host_->List();
  ASSERT_EQ(listing.others.size(), 1u);
  EXPECT_EQ(listing.others[0].state, ModelHost::Other::State::kFailed);
  EXPECT_EQ(listing.others[0].memory.total(), 0);

  on_make_ = nullptr;
  Serve("a");

  EXPECT_TRUE(host_->List().others.empty());
}

TEST_F(ModelHostTest, AnUnloadAskedForAgainIsTheSameJobByAnyName) {
  PublishTuned("a", {"alias"});
  auto request = registry_->Find("a");
  std::atomic<int> n_ended{0};
  const auto count = [&](const Job&) { ++n_ended; };

  const Job job = Unload("alias", count);

  EXPECT_EQ(Unload("a", count).id, job.id);
  EXPECT_EQ(Unload("alias", count).id, job.id);
  EXPECT_EQ(Refusal([&] { Load("a"); }), "in_use: model 'a' is still being unloaded (" + job.id +
                                             "): wait until its requests have ended");
  const ModelHost::Listing listing = host_->List();
  EXPECT_TRUE(listing.served.empty());
  ASSERT_EQ(listing.others.size(), 1u);
  EXPECT_EQ(listing.others[0].state, ModelHost::Other::State::kUnloading);
  EXPECT_EQ(listing.others[0].job_id, job.id);
  EXPECT_EQ(jobs_->Find(job.id)->status, JobStatus::kRunning);
  request.reset();
  EXPECT_EQ(WaitForEnd(job).status, JobStatus::kSucceeded);
  EXPECT_TRUE(WaitFor([&] { return n_ended == 3; }));
}

TEST_F(ModelHostTest, TheModelThatIsServedLeavesNotTheOneThatIsLeaving) {
  PublishTuned("a");
  auto old_request = registry_->Find("a");
  const Job old_job = Unload("a");
  PublishTuned("a");  // trained again meanwhile
  auto new_request = registry_->Find("a");
  EXPECT_EQ(host_->List().served.size(), 1u);
  EXPECT_EQ(host_->List().others.size(), 1u);

  const Job new_job = Unload("a");

  EXPECT_NE(new_job.id, old_job.id);
  EXPECT_FALSE(registry_->Contains("a"));
  new_request.reset();
  EXPECT_EQ(WaitForEnd(new_job).status, JobStatus::kSucceeded);
  EXPECT_EQ(jobs_->Find(old_job.id)->status, JobStatus::kRunning);
  old_request.reset();
  EXPECT_EQ(WaitForEnd(old_job).status, JobStatus::kSucceeded);
}

TEST_F(ModelHostTest, EveryUnloadEndsWhoeverDeletesTheModelMeanwhile) {
  // The window between an unload's check and its removal is short: repeat until a try hits it.
  int n_meetings = 0;
  for (int i = 0; i < 1000 && n_meetings < 3; ++i) {
    PublishTuned("a");
    std::atomic<bool> go{false};
    std::thread deleting([&] {
      const auto model = registry_->Look("a");
      go = true;
      std::this_thread::sleep_for(std::chrono::microseconds(100 * (i % 50)));
      registry_->Remove(*model, nullptr, "it was deleted");
    });
    while (!go) std::this_thread::yield();
    Ended ended;
    try {
      Unload("a", ended.callback());
      const Job job = ended.Wait();
      if (job.status == JobStatus::kFailed) {
        ++n_meetings;
        EXPECT_EQ(job.error->code, "model_not_found");
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.reason(), "model_not_found");
    }
    deleting.join();
    EXPECT_FALSE(registry_->Contains("a"));
  }
  EXPECT_GT(n_meetings, 0) << "or this has tested nothing";
}

TEST_F(ModelHostTest, AListingNeverLacksAModelThatIsThere) {
  std::atomic<bool> is_there{false};
  std::atomic<bool> stop{false};
  std::atomic<int> n_listings{0};
  std::thread watcher([&] {
    while (!stop) {
      const bool was_there = is_there;
      int n = 0;
      const ModelHost::Listing listing = host_->List();
      for (const auto& entry : listing.served) n += entry.name == "a" ? 1 : 0;
      for (const auto& other : listing.others) n += other.id == "a" ? 1 : 0;
      // Listed before and after, so it was listed throughout.
      if (was_there && is_there) {
        EXPECT_EQ(n, 1);
      }
      EXPECT_LE(n, 1);
      ++n_listings;
    }
  });
  for (int i = 0; i < 20; ++i) {
    const Job load = Load("a");
    is_there = true;
    WaitForEnd(load);
    auto request = registry_->Find("a");
    const Job unload = Unload("a");
    const int seen = n_listings;
    EXPECT_TRUE(WaitFor([&] { return n_listings > seen + 1; }));
    is_there = false;
    // Waits for two more listings: one that began earlier does not count.
    EXPECT_TRUE(WaitFor([&, now = n_listings.load()] { return n_listings > now + 1; }));
    request.reset();
    WaitForEnd(unload);
  }
  stop = true;
  watcher.join();
}

TEST_F(ModelHostTest, StopEndsTheUnloadsThatWait) {
  Serve("a");
  auto request = registry_->Find("a");
  Ended ended;
  Unload("a", ended.callback());

  host_->Stop();

  const Job job = ended.Wait();
  EXPECT_EQ(job.status, JobStatus::kFailed);
  EXPECT_EQ(job.error->code, "interrupted");
  request.reset();
}

}  // namespace
}  // namespace tandem::server
