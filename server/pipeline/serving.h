#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

namespace tandem::server {

struct ServerKeys {
  std::string admin;  // for routes below /admin
  std::string api;    // for all other routes; empty: sent without a key
};

struct ServedModelReply {
  std::string id;
  std::string text;  // the answer to `chat`; empty: the order has no chat
};

// Carries out a job of kind load (its spec.json): loads the model into a running server over its
// admin API, waits, sets the alias and sends the chat message. It first unloads a model of the same
// id if `is_ours` or the order's `replace` is true. `say` receives one line per step.
//
// Throws kUnavailable if no server answers, kPermissionDenied for a wrong key, and kCancelled on
// stop. A refused request is kInvalidArgument, with a remedy in the message. Throws
// kFailedPrecondition if loading or the chat fails, and kDataLoss for an unexpected answer.
ServedModelReply LoadIntoServer(const std::string& order_json, const ServerKeys& keys, bool is_ours,
                                std::stop_token stop,
                                const std::function<void(const std::string& line)>& say);

// Whether the order's server has its model loaded; false if no server answers.
bool IsServed(const std::string& order_json, const ServerKeys& keys, std::stop_token stop);

}  // namespace tandem::server
