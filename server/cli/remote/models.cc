#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

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
  const auto flags = std::make_shared<RemoteFlags>();
  AddRemoteFlags(command, *flags);
  command.callback([flags, &exit_code] { exit_code = ListServedModels(*flags); });
}

void AddPs(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<RemoteFlags>();
  AddRemoteFlags(command, *flags);
  command.callback([flags, &exit_code] { exit_code = ShowLoadedModels(*flags); });
}

}  // namespace tandem::server
