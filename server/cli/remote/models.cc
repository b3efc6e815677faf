#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "server/cli/remote/family_list.h"
#include "server/cli/remote/outlook.h"
#include "server/cli/remote/remote_flags.h"
#include "server/cli/remote/table.h"
#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

int ListServedModels(const RemoteFlags& flags) {
  const Json list = ClientOf(flags).Get("/v1/models");
  if (flags.is_json) {
    PrintJson(list);
    return 0;
  }
  TextTable table({"MODEL", "CONTEXT", "PARENT", "OWNER", "CREATED"});
  for (const Json& model : list.value("data", Json::array())) {
    table.Add({CellOf(model, "id"), CellOf(model, "max_model_len"), CellOf(model, "parent"),
               CellOf(model, "owned_by"), TimeCellOf(model, "created")});
  }
  table.Print();
  return 0;
}

int ShowLoadedModels(const RemoteFlags& flags) {
  const ServerClient client = ClientOf(flags);
  const Json list = client.Get("/admin/models");
  if (flags.is_json) {
    PrintJson(list);
    return 0;
  }
  TextTable table({"MODEL", "STATE", "DTYPE", "CONTEXT", "MEMORY", "RUNNING", "WAITING"});
  for (const Json& model : list.value("data", Json::array())) {
    table.Add({CellOf(model, "id"), CellOf(model, "state"), CellOf(model, "dtype"),
               CellOf(model, "max_model_len"), BytesCellOf(model, "memory_bytes"),
               CellOf(model, "running"), CellOf(model, "waiting")});
  }
  table.Print();
  return 0;
}

}  // namespace

void AddModels(CLI::App& command, int& exit_code) {
  struct Flags {
    RemoteFlags remote;
    OutlookFlags outlook;
    bool families = false;
  };
  const auto flags = std::make_shared<Flags>();
  OutlookFlags& outlook = flags->outlook;
  CLI::Option* model =
      command
          .add_option("model", outlook.model,
                      "show the memory and speed to expect of this model on this machine, without "
                      "a server or a download: ORG/NAME, a directory, a GGUF file, a config.json")
          ->type_name("MODEL");
  CLI::Option* families =
      command
          .add_flag("--families", flags->families,
                    "list the model families of this program, and what it does with each")
          ->excludes(model);
  command
      .add_option("--memory", outlook.memory,
                  "with MODEL: memory for it, such as 8G (default: 80 % of the available memory)")
      ->needs(model);
  command
      .add_option("--max-model-len", outlook.max_model_len,
                  "with MODEL: context in tokens (0: the model's own)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str()
      ->needs(model);
  command
      .add_option("--threads", outlook.threads,
                  "with MODEL: threads to measure with (0: one per physical core)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str()
      ->needs(model);
  AddRemoteFlags(command, flags->remote);
  for (const char* name : {"--url", "--key-file", "--data-dir"}) {
    command.get_option(name)->excludes(model)->excludes(families);
  }
  command.callback([flags, &exit_code] {
    flags->outlook.is_json = flags->remote.is_json;
    if (flags->families) {
      PrintFamilies(flags->remote.is_json);
    } else if (!flags->outlook.model.empty()) {
      PrintOutlook(flags->outlook);
    } else {
      exit_code = ListServedModels(flags->remote);
    }
  });
}

void AddPs(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<RemoteFlags>();
  AddRemoteFlags(command, *flags);
  command.callback([flags, &exit_code] { exit_code = ShowLoadedModels(*flags); });
}

}  // namespace tandem::server
