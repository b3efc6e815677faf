// The threads of models and jobs out of memory: at every allocation of a load and an unload.

#include "server/models/model_host.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/formats/model_dir.h"
#include "tests/out_of_memory/failing_new.h"
#include "tests/support/temporary_dir.h"
#include "tests/support/tiny_model.h"

namespace tandem::server {
namespace {

constexpr std::chrono::seconds kPatience{60};  // a test that waits this long has failed

// Models are real and tiny.
class ModelHostOutOfMemoryTest : public testing::Test {
 protected:
  ModelHostOutOfMemoryTest() {
    tests::WriteTinyModel(dir_.path(), {});
    options_.threads = 1;
    options_.kv_cache_bytes = 1 << 20;
    loaded_ = engine::OpenModel(engine::ModelDir::Open(dir_.path()), options_, "");
    jobs_ = std::make_unique<JobSupervisor>(JobStore::Open(dir_ / "data"), JobSupervisorOptions{},
                                            nullptr);
    host_ = std::make_unique<ModelHost>(*registry_, ledger_, *jobs_, Maker());
  }
  ~ModelHostOutOfMemoryTest() override {
    host_->Stop();
    jobs_.reset();
    registry_.reset();
  }

  ModelHost::Maker Maker() {
    ModelHost::Maker maker;
    maker.plan = [](const ModelLoadSpec&) {
      engine::MemoryPlan plan;
      plan.least.weights = 1000;
      return plan;
    };
    maker.make = [this](const ModelLoadSpec& spec, MemoryReservation memory,
                        const std::function<void(double)>& progress) {
      progress(0.5);
      auto model = std::make_shared<ServedModel>();
      model->id = spec.id;
      model->memory = std::move(memory);
      model->engine = std::make_shared<engine::Engine>(loaded_, options_);
      return model;
    };
    return maker;
  }

  // Waits for the end of the job that `begin` starts. Returns nullopt if it was not accepted.
  std::optional<JobStatus> EndOf(const std::function<Job(ModelHost::OnEnd)>& begin) {
    const auto ended = std::make_shared<std::promise<JobStatus>>();
    auto status = ended->get_future();
    if (Attempt([&] { begin([ended](const Job& job) { ended->set_value(job.status); }); })) {
      return std::nullopt;
    }
    if (status.wait_for(kPatience) == std::future_status::ready) return status.get();
    ADD_FAILURE() << "the job does not end";
    return std::nullopt;
  }
  std::optional<JobStatus> Load() {
    ModelLoadSpec spec;
    spec.source = "/nowhere";
    spec.id = "m";
    return EndOf([&](ModelHost::OnEnd on_end) { return host_->Load(spec, "{}", on_end); });
  }
  std::optional<JobStatus> Unload() {
    return EndOf([&](ModelHost::OnEnd on_end) { return host_->Unload("m", true, "{}", on_end); });
  }

  tests::TemporaryDir dir_;
  engine::EngineOptions options_;
  engine::LoadedModel loaded_;
  MemoryLedger ledger_{1'000'000};
  std::unique_ptr<ModelRegistry> registry_ = std::make_unique<ModelRegistry>(false);
  std::unique_ptr<JobSupervisor> jobs_;
  std::unique_ptr<ModelHost> host_;
};

TEST_F(ModelHostOutOfMemoryTest, EveryLoadAndUnloadEndsAndTheNextOneSucceeds) {
  const tests::SpareThisThread spared;  // only the threads of the host, the jobs and the engine
  int64_t k = 0;
  for (bool has_failed = true; has_failed && k < 2000 && !HasFailure();) {
    SCOPED_TRACE("allocation " + std::to_string(++k));
    std::optional<JobStatus> load;
    std::optional<JobStatus> unload;
    {
      const tests::FailAllocation failure(k);
      load = Load();
      if (load == JobStatus::kSucceeded) unload = Unload();
      has_failed = failure.has_failed();
    }
    ASSERT_TRUE(load);
    if (load != JobStatus::kSucceeded) {
      ASSERT_EQ(Load(), JobStatus::kSucceeded);
    }
    if (unload != JobStatus::kSucceeded) {
      ASSERT_EQ(Unload(), JobStatus::kSucceeded);
    }
    ASSERT_TRUE(registry_->empty());
  }
  EXPECT_GT(k, 50);
  JobFilter running;
  running.status = JobStatus::kRunning;
  EXPECT_TRUE(jobs_->List(running).jobs.empty());
}

}  // namespace
}  // namespace tandem::server
