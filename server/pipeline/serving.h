#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

namespace tandem::server {

struct ServerKeys {
  std::string admin;  // of routes below /admin
  std::string api;    // of the others; empty: none is needed
};

struct ServedModelReply {
  std::string id;
  std::string text;  // of the chat; empty: nobody asked
};

// Loads a model into a running server over its admin API, waits for that, gives it the alias and
// asks it something, as a job of kind load says (its spec.json). A model of the same id is unloaded
// before if `is_ours`, or the order says `replace`. `say` is told what happens, a line each.
// Throws kUnavailable when no server answers, kInvalidArgument for what it refuses, with what to
// do, and kCancelled when stopped.
ServedModelReply LoadIntoServer(const std::string& order_json, const ServerKeys& keys, bool is_ours,
                                std::stop_token stop,
                                const std::function<void(const std::string& line)>& say);

// Whether the server that the order names has its model loaded. False, too, when none answers.
bool IsServed(const std::string& order_json, const ServerKeys& keys, std::stop_token stop);

}  // namespace tandem::server
