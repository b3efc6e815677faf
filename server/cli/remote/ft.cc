#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/base/attempt.h"
#include "engine/base/url.h"
#include "server/cli/remote/job_progress.h"
#include "server/cli/remote/remote_flags.h"
#include "server/cli/remote/table.h"
#include "server/cli/verbs.h"
#include "server/jobs/exit_codes.h"
#include "server/terminal/interrupts.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFineTuningJobs = "/v1/fine_tuning/jobs";

struct FtFlags {
  RemoteFlags remote;
  std::string id;
  std::string model;
  std::string file;
  std::string validation_file;
  std::string method = "supervised";
  std::string suffix;
  std::optional<int64_t> epochs;
  std::optional<int64_t> batch_size;
  std::optional<int64_t> max_steps;
  std::optional<int64_t> rank;
  std::optional<double> learning_rate;
  std::optional<int64_t> seed;
  int64_t limit = 20;
  bool trains_all = false;
  bool is_dry_run = false;
  bool follows = false;
};

std::string FtPath(const std::string& id, const std::string& rest = "") {
  return std::string(kFineTuningJobs) + "/" + PercentEncode(id) + rest;
}

bool IsOver(const std::string& status) {
  return status == "succeeded" || status == "failed" || status == "cancelled";
}

// Follows a job until it ends or the user stops following. Returns the job.
Json FollowJob(const ServerClient& client, const std::string& id,
               const std::function<void(const Json& event)>& on_event) {
  Interrupts interrupts;
  const Interrupts::Work work(interrupts);
  const auto stopped = ErrorOf({ErrorCode::kCancelled}, [&] {
    client.Stream(
        FtPath(id, "/events?stream=true"), nullptr,
        [&](std::string_view, const Json& event) { on_event(event); }, work.token());
  });
  if (stopped) {
    throw Error(ErrorCode::kCancelled, "stopped following; the job goes on. `tandem ft events " +
                                           id + " --follow` follows it again, `tandem ft cancel " +
                                           id + "` ends it");
  }
  Json job = client.Get(FtPath(id));
  if (!IsOver(CellOf(job, "status"))) {
    throw Error(ErrorCode::kUnavailable,
                "the server at " + client.url() + " stops; it continues the job at its next start");
  }
  return job;
}

int ExitCodeOfJob(const Json& job) {
  const std::string status = CellOf(job, "status");
  if (status == "cancelled") return kExitCancelled;
  return status == "succeeded" ? kExitDone : kExitFailed;
}

// The id of an uploaded file: uploads the path, unless it is such an id already.
std::string UploadedFile(const ServerClient& client, const std::string& file) {
  std::error_code ignored;
  if (file.starts_with("file-") && !std::filesystem::exists(file, ignored)) return file;
  Interrupts interrupts;
  const Interrupts::Work work(interrupts);
  const std::string id = CellOf(client.Upload("/v1/files", file, "fine-tune", work.token()), "id");
  std::fprintf(stderr, "uploaded %s as %s\n", VisibleLine(file, 400).c_str(),
               VisibleLine(id, 200).c_str());
  return id;
}

Json HyperparametersOf(const FtFlags& flags) {
  Json out = Json::object();
  if (flags.epochs) out["n_epochs"] = *flags.epochs;
  if (flags.batch_size) out["batch_size"] = *flags.batch_size;
  if (flags.learning_rate) out["learning_rate_multiplier"] = *flags.learning_rate;
  if (flags.max_steps) out["max_steps"] = *flags.max_steps;
  if (flags.rank) out["lora"] = {{"rank", *flags.rank}, {"alpha", 2 * *flags.rank}};
  if (flags.trains_all) out["lora"] = false;
  return out;
}

// The name of the new model, or why there is none.
void PrintEndOfJob(const ServerClient& client, const Json& job) {
  const Json error = job.value("error", Json());
  const std::string model = CellOf(job, "fine_tuned_model");
  if (CellOf(job, "status") == "succeeded") {
    std::printf("%s\n", VisibleLine(model, 400).c_str());
    std::fprintf(stderr, "chat with it: tandem run --url %s --model %s\n", client.url().c_str(),
                 VisibleLine(model, 400).c_str());
  } else if (error.is_object()) {
    std::fprintf(stderr, "tandem: the job has failed: %s\n",
                 VisibleLine(CellOf(error, "message")).c_str());
  }
}

int CreateFineTuning(const FtFlags& flags) {
  const ServerClient client = ClientOf(flags.remote);
  Json request = {{"model", flags.model}, {"training_file", UploadedFile(client, flags.file)}};
  if (!flags.validation_file.empty()) {
    request["validation_file"] = UploadedFile(client, flags.validation_file);
  }
  request["method"] = {{"type", flags.method},
                       {flags.method, {{"hyperparameters", HyperparametersOf(flags)}}}};
  if (!flags.suffix.empty()) request["suffix"] = flags.suffix;
  if (flags.seed) request["seed"] = *flags.seed;
  if (flags.is_dry_run) request["dry_run"] = true;
  Json job = client.Post(kFineTuningJobs, request);
  if (flags.is_dry_run) {
    PrintJson(job);
    return kExitDone;
  }
  const std::string id = CellOf(job, "id");
  if (!flags.follows) {
    if (flags.remote.is_json) {
      PrintJson(job);
    } else {
      std::printf("%s\n", VisibleLine(id, 200).c_str());
    }
    return kExitDone;
  }
  JobProgressLine progress;
  job = FollowJob(client, id, [&](const Json& event) { progress.Take(event); });
  progress.End();
  if (flags.remote.is_json) {
    PrintJson(job);
  } else {
    PrintEndOfJob(client, job);
  }
  return ExitCodeOfJob(job);
}

int ListFineTuning(const FtFlags& flags) {
  const Json list =
      ClientOf(flags.remote)
          .Get(std::string(kFineTuningJobs) + "?limit=" + std::to_string(flags.limit));
  if (flags.remote.is_json) {
    PrintJson(list);
    return 0;
  }
  TextTable table({"JOB", "STATUS", "MODEL", "CREATED", "FINISHED", "RESULT"});
  for (const Json& job : list.value("data", Json::array())) {
    if (!job.is_object()) continue;
    table.Add({CellOf(job, "id"), CellOf(job, "status"), CellOf(job, "model"),
               TimeCellOf(job, "created_at"), TimeCellOf(job, "finished_at"),
               CellOf(job, "fine_tuned_model")});
  }
  table.Print();
  return 0;
}

int ShowFineTuning(const FtFlags& flags, const Json& job) {
  if (flags.remote.is_json) {
    PrintJson(job);
    return 0;
  }
  TextTable table({"FIELD", "VALUE"});
  for (const auto& [name, value] : job.items()) {
    const bool is_empty =
        value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
    if (name == "object" || name == "organization_id" || is_empty) continue;
    const bool is_time = name.ends_with("_at") || name == "estimated_finish";
    table.Add({name, is_time ? TimeCellOf(job, name.c_str()) : CellOf(job, name.c_str())});
  }
  table.Print();
  return 0;
}

void PrintEvent(const FtFlags& flags, const Json& event) {
  if (flags.remote.is_json) {
    std::puts(event.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    const std::string figures = FiguresLine(event);
    std::puts(figures.empty() ? EventLine(event).c_str()
                              : (TimeCellOf(event, "created_at") + "  " + figures).c_str());
  }
  std::fflush(stdout);
}

int ShowEvents(const FtFlags& flags) {
  const ServerClient client = ClientOf(flags.remote);
  if (flags.follows) {
    return ExitCodeOfJob(
        FollowJob(client, flags.id, [&](const Json& event) { PrintEvent(flags, event); }));
  }
  const Json list = client.Get(FtPath(flags.id, "/events?limit=" + std::to_string(flags.limit)));
  const Json events = list.value("data", Json::array());
  // The newest come first; people read downwards.
  for (auto event = events.rbegin(); event != events.rend(); ++event) PrintEvent(flags, *event);
  return 0;
}

CLI::App* AddFtVerb(CLI::App& command, const std::string& name, const std::string& effect,
                    const std::shared_ptr<FtFlags>& flags, bool needs_id) {
  return AddRemoteVerb(command, name, effect, flags->remote, needs_id ? &flags->id : nullptr);
}

void AddFtCreate(CLI::App& command, const std::shared_ptr<FtFlags>& flags, int& exit_code) {
  CLI::App* create =
      AddFtVerb(command, "create", "upload chats and fine-tune a model on them", flags, false);
  create->add_option("--model,-m", flags->model, "the base: a model of the server")->required();
  create->add_option("--file", flags->file, "JSONL file of chats, or the id of an uploaded file")
      ->required()
      ->type_name("FILE");
  create->add_option("--validation-file", flags->validation_file, "as --file; is not learned")
      ->type_name("FILE");
  create->add_option("--method", flags->method, "supervised, or dpo for pairs of answers")
      ->check(CLI::IsMember({"supervised", "dpo"}))
      ->capture_default_str();
  create->add_option("--suffix", flags->suffix, "part of the new model's name");
  create->add_option("--epochs", flags->epochs, "passes over the file (default: by its size)");
  create->add_option("--batch-size", flags->batch_size, "examples per step (default: by the size)");
  create->add_option("--learning-rate-multiplier", flags->learning_rate,
                     "factor of the usual learning rate");
  create->add_option("--max-steps", flags->max_steps, "most steps");
  auto* rank = create->add_option("--rank", flags->rank, "rank of the adapter (default: 8)");
  create->add_flag("--full", flags->trains_all, "train all weights instead of an adapter")
      ->excludes(rank);
  create->add_option("--seed", flags->seed, "the same seed gives the same model");
  auto* dry = create->add_flag("--dry-run", flags->is_dry_run,
                               "print the plan (memory, steps, time) and start nothing");
  create
      ->add_flag("--follow,-f", flags->follows,
                 "show the progress until the job ends, then print the model's name; the exit code "
                 "is 0, 1 or, if the job was cancelled, 130")
      ->excludes(dry);
  create->callback([flags, &exit_code] { exit_code = CreateFineTuning(*flags); });
}

}  // namespace

void AddFt(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<FtFlags>();
  command.require_subcommand(1);
  AddFtCreate(command, flags, exit_code);
  CLI::App* list = AddFtVerb(command, "list", "list the newest fine-tuning jobs", flags, false);
  list->add_option("--limit", flags->limit, "most jobs")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  list->callback([flags, &exit_code] { exit_code = ListFineTuning(*flags); });
  AddFtVerb(command, "show", "show a fine-tuning job", flags, true)->callback([flags, &exit_code] {
    exit_code = ShowFineTuning(*flags, ClientOf(flags->remote).Get(FtPath(flags->id)));
  });
  CLI::App* events = AddFtVerb(command, "events", "print the events of a job", flags, true);
  events->add_option("--limit", flags->limit, "most events, the newest ones")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  events->add_flag("--follow,-f", flags->follows,
                   "until the job ends; the exit code is then that of the job: 0, 1 or 130");
  events->callback([flags, &exit_code] { exit_code = ShowEvents(*flags); });
  for (const auto& [name, effect] : {std::pair("cancel", "end a job; its checkpoints stay"),
                                     std::pair("pause", "stop a job after its next checkpoint"),
                                     std::pair("resume", "continue a paused job")}) {
    AddFtVerb(command, name, effect, flags, true)->callback([flags, action = std::string(name)] {
      ActOnRemoteJob(flags->remote, flags->id, FtPath(flags->id, "/" + action));
    });
  }
}

}  // namespace tandem::server
