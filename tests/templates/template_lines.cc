// Renders chat templates for tests/templates/compare.py: one JSON object per line of standard input
// and output. Not part of the program.
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/chat/chat_template.h"

namespace {

using tandem::Error;
using tandem::engine::ChatTemplate;
using Json = nlohmann::ordered_json;

std::shared_ptr<const ChatTemplate> Compile(const std::string& source) {
  static std::string last_source;
  static std::shared_ptr<const ChatTemplate> last;
  if (last == nullptr || source != last_source) {
    last = nullptr;
    last = ChatTemplate::Compile(source);
    last_source = source;
  }
  return last;
}

Json Answer(const Json& line) {
  std::shared_ptr<const ChatTemplate> compiled;
  try {
    compiled = Compile(line.at("template").get_ref<const std::string&>());
  } catch (const Error& error) {
    return {{"stage", "load"}, {"error", error.what()}};
  }
  tandem::engine::RenderInput input;
  input.messages = &line.at("messages");
  input.tools = &line.at("tools");
  input.extra = &line.at("extra");
  input.add_generation_prompt = line.at("add_generation_prompt");
  input.bos_token = line.at("bos_token");
  input.eos_token = line.at("eos_token");
  input.now_unix_s = line.at("now");
  try {
    return {{"text", tandem::engine::JoinPieces(compiled->Render(input))}};
  } catch (const Error& error) {
    return {{"stage", "render"}, {"error", error.what()}};
  }
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << Answer(Json::parse(line)).dump(-1, ' ', true) << "\n";
  }
  return 0;
}
