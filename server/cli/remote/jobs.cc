#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/url.h"
#include "server/cli/remote/remote_flags.h"
#include "server/cli/remote/table.h"
#include "server/cli/verbs.h"
#include "server/jobs/exit_codes.h"
#include "server/terminal/interrupts.h"
#include "server/terminal/terminal.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

struct JobsFlags {
  RemoteFlags remote;
  std::string id;
  std::string status;
  int64_t limit = 20;
  bool follows = false;
};

std::string JobPath(const JobsFlags& flags, const std::string& action = "") {
  return "/admin/jobs/" + PercentEncode(flags.id) + action;
}

std::string PercentCell(const Json& job) {
  const Json progress = job.value("progress", Json());
  if (!progress.is_number()) return "-";
  return std::to_string(static_cast<int>(progress.get<double>() * 100)) + " %";
}

std::string ErrorCell(const Json& job) {
  const Json error = job.value("error", Json());
  return error.is_object() ? CellOf(error, "message") : "";
}

int ListJobs(const JobsFlags& flags) {
  std::string path = "/admin/jobs?limit=" + std::to_string(flags.limit);
  if (!flags.status.empty()) path += "&status=" + PercentEncode(flags.status);
  const Json list = ClientOf(flags.remote).Get(path);
  if (flags.remote.is_json) {
    PrintJson(list);
    return 0;
  }
  TextTable table({"JOB", "TYPE", "STATUS", "PROGRESS", "CREATED", "ERROR"});
  for (const Json& job : list.value("data", Json::array())) {
    if (!job.is_object()) continue;
    table.Add({CellOf(job, "id"), CellOf(job, "type"), CellOf(job, "status"), PercentCell(job),
               TimeCellOf(job, "created_at"), ErrorCell(job)});
  }
  table.Print();
  return 0;
}

int ShowJob(const JobsFlags& flags) {
  const Json job = ClientOf(flags.remote).Get(JobPath(flags));
  if (flags.remote.is_json) {
    PrintJson(job);
    return 0;
  }
  TextTable table({"FIELD", "VALUE"});
  for (const auto& [name, value] : job.items()) {
    if (name == "object" || value.is_null()) continue;
    const bool is_time = name.ends_with("_at");
    table.Add({name, is_time ? TimeCellOf(job, name.c_str()) : CellOf(job, name.c_str())});
  }
  table.Print();
  return 0;
}

void PrintLogLine(const std::string& line) {
  std::puts(IsTerminal(fileno(stdout)) ? VisibleText(line).c_str() : line.c_str());
  std::fflush(stdout);
}

// With --follow, the exit code tells how the job ended.
int PrintLog(const JobsFlags& flags) {
  const ServerClient client = ClientOf(flags.remote);
  if (!flags.follows) {
    std::string text = client.GetText(JobPath(flags, "/log"));
    while (text.ends_with('\n')) text.pop_back();
    if (!text.empty()) PrintLogLine(text);
    return 0;
  }
  Interrupts interrupts;
  const Interrupts::Work work(interrupts);
  std::string status;
  client.Stream(
      JobPath(flags, "/log?follow=true"), nullptr,
      [&](std::string_view type, const Json& event) {
        if (type == "log") PrintLogLine(CellOf(event, "line"));
        if (type == "end") status = CellOf(event, "status");
      },
      work.token());
  if (status == "cancelled") return kExitCancelled;
  return status == "failed" ? kExitFailed : kExitDone;
}

CLI::App* AddJobVerb(CLI::App& command, const std::string& name, const std::string& effect,
                     const std::shared_ptr<JobsFlags>& flags, bool needs_id) {
  return AddRemoteVerb(command, name, effect, flags->remote, needs_id ? &flags->id : nullptr);
}

}  // namespace

void AddJobs(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<JobsFlags>();
  // Without a subcommand: the list.
  command.require_subcommand(0, 1);
  AddRemoteFlags(command, flags->remote);
  command.callback([flags, &command, &exit_code] {
    if (command.get_subcommands().empty()) exit_code = ListJobs(*flags);
  });
  CLI::App* list = AddJobVerb(command, "list", "list the newest jobs of a server", flags, false);
  list->add_option("--status", flags->status,
                   "only jobs of this status: queued, running, paused, succeeded, failed or "
                   "cancelled");
  list->add_option("--limit", flags->limit, "most jobs")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  list->callback([flags, &exit_code] { exit_code = ListJobs(*flags); });
  AddJobVerb(command, "show", "show a job", flags, true)->callback([flags, &exit_code] {
    exit_code = ShowJob(*flags);
  });
  CLI::App* log = AddJobVerb(command, "log", "print the log of a job", flags, true);
  log->add_flag("--follow,-f", flags->follows,
                "until the job ends; the exit code is then that of the job: 0, 1 or 130");
  log->callback([flags, &exit_code] { exit_code = PrintLog(*flags); });
  for (const auto& [name, effect] : {std::pair("cancel", "end a job; its results so far stay"),
                                     std::pair("pause", "stop a job after its next checkpoint"),
                                     std::pair("resume", "continue a paused job")}) {
    AddJobVerb(command, name, effect, flags, true)->callback([flags, action = std::string(name)] {
      ActOnRemoteJob(flags->remote, flags->id, JobPath(*flags, "/" + action));
    });
  }
}

}  // namespace tandem::server
