#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stop_token>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "server/client/server_address.h"

namespace tandem::server {

// Client of one server, for the program's own verbs: JSON requests, uploads and event streams.
// Every request opens a connection of its own, so none is sent twice. Any thread, one at a time.
//
// All methods throw Error, with texts of the server made safe for a terminal:
//
//   kIo              no server answers, or it vanishes meanwhile; the text says what to do
//   kCancelled       the stop was requested
//   kDataLoss        the answer is not that of such a server, or larger than 64 MiB
//   by the status    400 kInvalidArgument, 401 kUnauthenticated, 403 kPermissionDenied, 404
//                    kNotFound, 409 kAlreadyExists, 429 and 503 kUnavailable, others
//                    kFailedPrecondition; the reason is the server's `code`
class ServerClient {
 public:
  using Json = nlohmann::ordered_json;

  explicit ServerClient(ServerAddress address);

  const std::string& url() const { return address_.url; }

  Json Get(const std::string& path, std::stop_token stop = {}) const;
  Json Post(const std::string& path, const Json& body, std::stop_token stop = {}) const;
  // The body of an answer that is not JSON.
  std::string GetText(const std::string& path, std::stop_token stop = {}) const;
  // POST of a form with one file, as /v1/files takes it.
  Json Upload(const std::string& path, const std::filesystem::path& file,
              const std::string& purpose, std::stop_token stop = {}) const;

  // Called for every event with its type (default "message") and data. An event with `error` is
  // thrown instead.
  using OnEvent = std::function<void(std::string_view type, const Json& data)>;
  // GET, or POST with a body, of a stream. Returns after its last event.
  void Stream(const std::string& path, const Json* body, const OnEvent& on_event,
              std::stop_token stop = {}) const;

 private:
  class Exchange;
  const ServerAddress address_;
};

}  // namespace tandem::server
