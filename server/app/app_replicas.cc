// What the app takes over from other replicas.

#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/app/app.h"
#include "server/app/publish_lock.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/jobs/job_files.h"
#include "server/wire/job_spec.h"

namespace tandem::server {
namespace {

// As many of each type as a start restores.
constexpr size_t kMaxFollowedJobs = 8;
constexpr size_t kMaxTasks = 16;
// Between looks for the models of jobs by requests for unknown names.
constexpr std::chrono::milliseconds kLookForModelsEvery{500};

}  // namespace

void App::StartFollowing() {
  if (!feed_) return;
  follower_ = std::make_unique<RequestPool>(
      RequestPool::Options{.n_threads = 1, .max_queued = kMaxTasks, .name = "tandem-follow"});
  follow_jobs_ = std::make_unique<FollowTask>(*follower_, "jobs", [this] {
    const PublishLock lock(publish_mutex_, publisher_);
    PublishNewJobModels();
  });
  follow_adapters_ =
      std::make_unique<FollowTask>(*follower_, "adapters", [this] { adapters_->FollowBook(); });
  feed_->Start();
}

// Runs on the feed's thread, so slow work goes to follower_.
void App::Follow(const std::string& table) {
  if (is_draining_) return;
  if (table == "jobs") {
    jobs_->OnStoreChanged();
    follow_jobs_->Post();
  } else if (table == "aliases" && aliases_) {
    aliases_->Refresh();
  } else if (table == "adapters" && adapters_) {
    follow_adapters_->Post();
  } else if (table == "api_keys" && managed_keys_) {
    managed_keys_->Refresh();
  } else if (table == "batches" || table == "leases") {
    if (batches_) batches_->OnStoreChanged();
    if (table == "leases") responses_->FailLeft();
  }
}

void App::PublishNewJobModels() {
  for (const JobType type : {JobType::kTrain, JobType::kFineTune}) {
    JobFilter filter;
    filter.type = type;
    filter.status = JobStatus::kSucceeded;
    filter.limit = kMaxFollowedJobs;
    const std::vector<Job> finished = jobs_->List(filter).jobs;
    for (auto job = finished.rbegin(); job != finished.rend(); ++job) {
      ThrowIfStopping();
      if (!published_jobs_.insert(job->id).second) {
        RemoveDeletedJobModel(*job);
        continue;
      }
      if (const auto error = ErrorOf([&] { PublishJobModel(*job); })) {
        spdlog::warn("job_model_not_loaded job={} reason=\"{}\"", job->id, error->what());
      }
    }
  }
}

// Another replica has deleted it: DELETE /v1/models marks the job's directory.
void App::RemoveDeletedJobModel(const Job& job) {
  if (!std::filesystem::exists(job.dir / kModelDeletedFile)) return;
  const std::string name = job.type == JobType::kFineTune ? FineTunedNameOf(job)
                                                          : ModelIdOfJob(job.request_json, job.id);
  const std::shared_ptr<const ServedModel> model = models_.LookServed(name);
  if (model && model->is_tuned()) models_.Remove(*model, nullptr, "it was deleted");
}

// A request may name the model of a job, or an adapter, before the notice of it has been followed.
bool App::LoadJobModel(const std::string& name) {
  if (!feed_ || is_loading_ || publisher_.load() == std::this_thread::get_id()) return false;
  {
    const PublishLock lock(publish_mutex_, publisher_, std::try_to_lock);
    if (!lock.owns()) {
      // Loading models takes minutes; requests must not hold their threads so long.
      if (options_.any_model_name) return false;
      throw Error(ErrorCode::kUnavailable, "models of finished jobs are being loaded, perhaps '" +
                                               name.substr(0, 120) + "'; try again later")
          .WithReason("model_loading");
    }
    const auto now = std::chrono::steady_clock::now();
    auto due = next_look_for_models_.load();
    if (now < due ||
        !next_look_for_models_.compare_exchange_strong(due, now + kLookForModelsEvery)) {
      return false;
    }
    PublishNewJobModels();
  }
  if (models_.Contains(name)) return true;
  AdapterHost* adapters = context_.adapter_host;
  if (adapters == nullptr) return false;
  adapters->FollowBook();
  return adapters->LoadShared(name);
}

}  // namespace tandem::server
