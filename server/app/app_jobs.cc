// The jobs of the app: opening their store, and serving the models they have made.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/embedded_models.h"
#include "convert/spec/spec.h"
#include "convert/work/work_dir.h"
#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "server/app/app.h"
#include "server/app/job_blobs.h"
#include "server/app/publish_lock.h"
#include "server/fine_tuning/fine_tuning_checkpoints.h"
#include "server/fine_tuning/fine_tuning_events.h"
#include "server/fine_tuning/fine_tuning_object.h"
#include "server/fine_tuning/fine_tuning_provenance.h"
#include "server/jobs/job_files.h"
#include "server/pipeline/run.h"
#include "server/wire/job_spec.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

// Newest jobs per type whose models a start restores. More would fill a small machine's memory with
// models that may no longer be used.
constexpr size_t kMaxRestoredModels = 8;
constexpr size_t kMaxSpecBytes = 1 << 20;

// A path in the job's result; empty if it is absent.
std::string ResultPath(const Job& job, const char* name) {
  if (!job.result_json) return "";
  const auto result = nlohmann::json::parse(*job.result_json, nullptr, false);
  if (!result.is_object() || !result.contains(name) || !result[name].is_string()) return "";
  const std::string path = result[name].get<std::string>();
  return path.empty() ? path : JobBlobs::LocalResult(job, path).string();
}

// step_metrics.csv of a fine-tuning job, with the columns of OpenAI's result files.
std::string ResultCsv(const FineTuningFigures& figures) {
  std::string csv = "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy\n";
  const auto cell = [](const nlohmann::ordered_json& row, const char* name) {
    return row.contains(name) && !row[name].is_null() ? row[name].dump() : std::string();
  };
  for (const nlohmann::ordered_json& row : figures.rows) {
    csv += cell(row, "step") + "," + cell(row, "train_loss") + "," +
           cell(row, "train_mean_token_accuracy") + "," + cell(row, "valid_loss") + "," +
           cell(row, "valid_mean_token_accuracy") + "\n";
  }
  return csv;
}

// Removes the partial output beside the target of a conversion that will not be resumed.
void RemoveUnfinishedOf(const fs::path& spec_file) {
  const std::string text = engine::ReadWholeFile(spec_file, kMaxSpecBytes);
  convert::RemoveUnfinished(convert::ParseConvertSpec(text, spec_file.string()).target);
}

void RemoveCancelled(const Job& job) {
  const auto error = Attempt([&] {
    if (job.type == JobType::kConvert) RemoveUnfinishedOf(SpecFile(job.dir));
    if (job.type != JobType::kPipeline) return;
    for (const fs::path& spec : UnfinishedConversions(job.dir)) RemoveUnfinishedOf(spec);
  });
  if (error) {
    spdlog::warn("unfinished_conversion_not_removed job={} reason=\"{}\"", job.id, error->what());
  }
}

}  // namespace

// Returns nullopt if no directory is set, or if another server uses it and no admin key is set.
std::optional<JobStore> App::OpenJobStore() {
  if (options_.data_dir.empty()) return std::nullopt;
  std::optional<JobStore> store;
  const auto error = ErrorOf([&] {
    store.emplace(
        JobStore::Open(fs::absolute(options_.data_dir), options_.database, replica_,
                       options_.blobs ? JobStore::DataDir::kOwn : JobStore::DataDir::kShared));
  });
  if (error && (has_admin_ || options_.database.is_shared())) throw Error(*error);
  if (error) spdlog::warn("no_files_and_jobs reason=\"{}\"", error->what());
  return store;
}

// Whether an unfinished batch or fine-tuning job reads the file.
bool App::IsInUse(const std::string& file_id) {
  if (batch_store_->UsesFile(file_id)) return true;
  if (!jobs_) return false;
  for (const JobStatus status : {JobStatus::kQueued, JobStatus::kRunning, JobStatus::kPaused}) {
    JobFilter filter;
    filter.type = JobType::kFineTune;
    filter.status = status;
    filter.limit = 1000;
    for (const Job& job : jobs_->List(filter).jobs) {
      for (const std::string& id : FineTuningFilesOf(job)) {
        if (id == file_id) return true;
      }
    }
  }
  return false;
}

void App::StartJobs() {
  if (options_.database.is_shared()) {
    // Before this replica owns any work: its lease shows the others that it lives.
    feed_ = std::make_unique<ChangeFeed>(options_.database, replica_,
                                         [this](const std::string& table) { Follow(table); });
  }
  std::optional<JobStore> store = OpenJobStore();
  if (!store) return StartResponses({});
  const fs::path data_dir = fs::absolute(options_.data_dir);
  StartResponses(data_dir);
  // Held until earlier models are restored: a job that ended while no server ran publishes after
  // them.
  const PublishLock lock(publish_mutex_, publisher_);
  JobSupervisorOptions jobs = options_.jobs;
  StartBlobs(jobs);
  jobs_ = std::make_unique<JobSupervisor>(
      std::move(*store), std::move(jobs), [this](const Job& job) { OnJobSucceeded(job); },
      RemoveCancelled);
  batch_store_ = std::make_unique<BatchStore>(data_dir, options_.database, replica_);
  files_ = std::make_unique<FileStore>(
      FileStore::Options{.data_dir = data_dir,
                         .shared = options_.database,
                         .blobs = options_.blobs,
                         .replica = replica_,
                         .cache_bytes = options_.blob_cache_bytes,
                         .max_file_bytes = options_.max_file_bytes,
                         .is_in_use = [this](const std::string& id) { return IsInUse(id); }});
  RemoveDeletedCheckpoints(*jobs_);
  RestoreJobModels();
  host_ = std::make_unique<ModelHost>(models_, memory_, *jobs_, ModelMaker());
  pulls_ = std::make_unique<ModelPulls>();
  context_.model_host = host_.get();
  context_.pulls = pulls_.get();
  context_.jobs = jobs_.get();
  context_.files = files_.get();
}

// Restores models of earlier jobs, oldest first: of two with the same name, the newer one stays.
void App::RestoreJobModels() {
  for (const JobType type : {JobType::kTrain, JobType::kFineTune}) {
    JobFilter filter;
    filter.type = type;
    filter.status = JobStatus::kSucceeded;
    filter.limit = kMaxRestoredModels;
    const std::vector<Job> finished = jobs_->List(filter).jobs;
    for (auto job = finished.rbegin(); job != finished.rend(); ++job) {
      published_jobs_.insert(job->id);
      if (const auto error = ErrorOf([&] { PublishJobModel(*job); })) {
        spdlog::warn("job_model_not_loaded job={} reason=\"{}\"", job->id, error->what());
        if (GivesUp(*job, *error)) return;
      }
    }
  }
}

void App::OnJobSucceeded(const Job& job) {
  ShareJob(job);
  const PublishLock lock(publish_mutex_, publisher_);
  ThrowIfStopping();
  published_jobs_.insert(job.id);
  if (job.type == JobType::kPipeline) return LoadPipelineModels(job);
  if (job.type == JobType::kFineTune) StoreFineTuningResult(job);
  const auto error = ErrorOf([&] { PublishJobModel(job); });
  if (!error) return;
  if (error->reason() != "out_of_memory" && error->reason() != "model_not_found") {
    throw Error(*error);
  }
  // A temporary shortage must not fail a job after hours of training.
  spdlog::warn("job_model_not_loaded job={} reason=\"{}\"", job.id, error->what());
  AppendLogLine(LogFile(job.dir), std::string("tandem: the model is complete, but not served: ") +
                                      error->what() + "; the next start tries again");
}

// Idempotent, because a job may be published again. The file's id is recorded before the file is
// added, so that a kill in between does not lead to a second file.
void App::StoreFineTuningResult(const Job& job) {
  const FineTuningFigures figures = ReadFineTuningFigures(job, FineTuningStepsOf(job));
  std::optional<FineTuningResult> result = ReadFineTuningResult(job);
  if (!result || result->result_files.empty()) {
    result.emplace();
    result->result_files = {FileStore::NewId()};
    result->trained_tokens = figures.trained_tokens;
    result->steps = figures.last_step;
    WriteFineTuningResult(job, *result);
  }
  const std::string& id = result->result_files.at(0);
  if (files_->Find(id)) return;
  TemporaryFile csv = files_->BeginFile();
  csv.Write(ResultCsv(figures));
  files_->Add(std::move(csv),
              {"step_metrics.csv", "fine-tune-results", std::nullopt, id, job.owner});
}

void App::PublishJobModel(const Job& job) {
  const bool is_fine_tune = job.type == JobType::kFineTune;
  if ((job.type != JobType::kTrain && !is_fine_tune) || !job.result_json) return;
  if (job.is_model_deleted || fs::exists(job.dir / kModelDeletedFile)) return;
  FetchJob(job);
  const std::string adapter = ResultPath(job, "adapter_dir");
  RecordJob(job);
  if (is_fine_tune && !adapter.empty()) return PublishAdapter(job, adapter);
  const std::string path = ResultPath(job, "model_dir");
  if (path.empty()) return;  // an unmerged adapter, or the spec disables the export
  PublishModel(job, path);
}

// The provenance of a fine-tuned model, beside its files.
void App::RecordJob(const Job& job) {
  if (job.type != JobType::kFineTune) return;
  std::string path = ResultPath(job, "adapter_dir");
  if (path.empty()) path = ResultPath(job, "model_dir");
  if (!path.empty()) RecordFineTuning(job, path, models_, *files_);
}

void App::PublishAdapter(const Job& job, const std::string& path) {
  const std::string name = FineTunedNameOf(job);
  PublishAdapterAs(name, path, models_.Look(FineTunedBaseOf(job)), job.owner);
  spdlog::info("job_model_published job={} model={}", job.id, name);
}

void App::PublishAdapterAs(const std::string& name, const std::string& path,
                           std::shared_ptr<const ServedModel> base, std::optional<int64_t> owner) {
  std::optional<NameClaim> claim = models_.TryClaimTuned(name);
  if (!claim) throw Error(ErrorCode::kAlreadyExists, "another model has the name '" + name + "'");
  MemoryReservation memory = memory_.Reserve(name, engine::PlanAdapterMemory(path, base->loaded()));
  std::vector<NameClaim> names;
  names.push_back(std::move(*claim));
  models_.Publish(
      LoadServedAdapter({.name = name, .path = path, .owned_by = "user", .owner = owner},
                        std::move(base), options_.engine, std::move(memory)),
      std::move(names));
}

void App::PublishModel(const Job& job, const std::string& path) {
  const bool is_fine_tune = job.type == JobType::kFineTune;
  const std::string wanted =
      is_fine_tune ? FineTunedNameOf(job) : ModelIdOfJob(job.request_json, job.id);
  // Skip a name that another model has taken since the job was accepted.
  std::vector<NameClaim> names;
  for (const std::string& name : {wanted, job.id}) {
    if (auto claim = models_.TryClaimTuned(name)) names.push_back(std::move(*claim));
  }
  if (names.empty()) {
    throw Error(ErrorCode::kAlreadyExists, "another model has the name '" + job.id + "'");
  }
  const std::string id = names.front().name();
  OpenedModel opened = OpenModelArgument({.name = id, .path = path});
  const engine::MemoryPlan plan = engine::PlanMemory(opened.files, options_.engine);
  LoadSettings settings;
  settings.labels.owned_by = "user";
  settings.labels.owner = job.owner;
  settings.labels.parent = is_fine_tune ? FineTunedBaseOf(job) : BaseModelOfJob(job.request_json);
  settings.in_background = true;
  settings.progress = [this](double) { ThrowIfStopping(); };
  settings.memory = memory_.Reserve(id, plan.least);
  settings.memory.GrowKv(plan.most_kv, 2);  // at most half of the free memory
  models_.Publish(MakeModel(std::move(opened), options_.engine, "", std::move(settings)),
                  std::move(names));
  spdlog::info("job_model_published job={} model={}", job.id, id);
}

// Jobs need files: an embedded model is written to disk at its first use.
std::string App::PathOfModel(const ServedModel& model) {
  if (fs::exists(model.source)) return model.source;
  const fs::path dir = fs::absolute(options_.data_dir) / "models" /
                       (model.source + "-" + model.loaded().fingerprint);
  const std::lock_guard lock(export_mutex_);
  if (!fs::exists(dir)) config::WriteEmbeddedModel(model.source, dir);
  return dir.string();
}

}  // namespace tandem::server
