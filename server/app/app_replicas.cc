// What the app takes over from other replicas.

#include <chrono>
#include <filesystem>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/app/app.h"
#include "server/app/job_blobs.h"
#include "server/app/publish_lock.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/jobs/job_files.h"
#include "server/jobs/prepared_runner.h"
#include "server/wire/job_spec.h"

namespace tandem::server {
namespace {

// As many of each type as a start restores.
constexpr size_t kMaxFollowedJobs = 8;
constexpr size_t kMaxTasks = 16;
constexpr std::chrono::milliseconds kLookForFilesEvery{50};
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
  follow_garbage_ =
      std::make_unique<FollowTask>(*follower_, "garbage", [this] { files_->CollectGarbage(); });
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
    if (table == "leases" && options_.blobs && files_) follow_garbage_->Post();
  }
}

void App::StartBlobs(JobSupervisorOptions& jobs) {
  if (!options_.blobs) return;
  job_blobs_ =
      std::make_unique<JobBlobs>(options_.blobs, std::filesystem::absolute(options_.data_dir));
  const auto prepare = [this](const JobStart& job, const std::stop_token& stop) {
    const auto check = [&] {
      if (stop.stop_requested()) throw Error(ErrorCode::kCancelled, "the job was asked to end");
    };
    job_blobs_->Prepare(job, StartedFiles(check), check);
  };
  jobs.runner =
      std::make_shared<PreparedJobRunner>(std::make_shared<LocalJobRunner>(jobs.program), prepare);
}

std::unique_ptr<AdapterBook> App::OpenAdapterBook() const {
  const std::filesystem::path dir = std::filesystem::absolute(options_.data_dir);
  if (!options_.blobs) {
    return std::make_unique<AdapterBook>(options_.database, dir / "adapters.lock");
  }
  return std::make_unique<AdapterBook>(options_.database, options_.blobs, dir / "adapters");
}

// Jobs may begin and end while the server starts. `check` throws to end the wait.
FileStore& App::StartedFiles(const std::function<void()>& check) {
  for (;; std::this_thread::sleep_for(kLookForFilesEvery)) {
    check();
    if (FileStore* files = context_.files) return *files;
  }
}

// Publishes a job's results, before it counts as succeeded and without the lock: a large model
// takes minutes, and a store that is away longer. REQUIRES: they are in its directory.
void App::ShareJob(const Job& job) {
  if (!job_blobs_ || (job.type != JobType::kTrain && job.type != JobType::kFineTune)) return;
  const auto check = [this] { ThrowIfStopping(); };
  StartedFiles(check);
  UntilStoreWorks(job.id, check, [&] {
    if (job.type == JobType::kFineTune) StoreFineTuningResult(job);
    RecordJob(job);
    job_blobs_->Share(job);
  });
}

void App::FetchJob(const Job& job) {
  if (job_blobs_) job_blobs_->Fetch(job);
}

// Whether the other jobs would fail too. The next notice, or a request for the model, tries again.
bool App::GivesUp(const Job& job, const Error& error) {
  if (!IsStoreAway(error)) return false;
  published_jobs_.erase(job.id);
  return true;
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
        if (GivesUp(*job, *error)) return;
      }
    }
  }
}

// Another replica has deleted it: DELETE /v1/models marks the job's directory.
void App::RemoveDeletedJobModel(const Job& job) {
  if (!job.is_model_deleted && !std::filesystem::exists(job.dir / kModelDeletedFile)) return;
  const std::string name = job.type == JobType::kFineTune ? FineTunedNameOf(job)
                                                          : ModelIdOfJob(job.request_json, job.id);
  const std::shared_ptr<const ServedModel> model = models_.LookServed(name);
  if (model && model->is_tuned()) models_.Remove(*model, nullptr, "it was deleted");
}

// A request may name the model of a job, or an adapter, before the notice of it has been followed.
bool App::LoadJobModel(const std::string& name) {
  if (!feed_ || is_loading_ || publisher_.load() == std::this_thread::get_id()) return false;
  const auto now = std::chrono::steady_clock::now();
  auto due = next_look_for_models_.load();
  if (now < due || !next_look_for_models_.compare_exchange_strong(due, now + kLookForModelsEvery)) {
    return false;
  }
  {
    const PublishLock lock(publish_mutex_, publisher_, std::try_to_lock);
    if (!lock.owns()) {
      // Loading models takes minutes; requests must not hold their threads so long.
      if (options_.any_model_name) return false;
      throw Error(ErrorCode::kUnavailable, "models of finished jobs are being loaded, perhaps '" +
                                               name.substr(0, 120) + "'; try again later")
          .WithReason("model_loading");
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
