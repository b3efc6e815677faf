#pragma once

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/url.h"
#include "engine/objects/object_options.h"
#include "engine/objects/xml_reader.h"
#include "server/blobs/object_blobs.h"
#include "tests/engine/hub/hub_server.h"

namespace tandem::tests {

// An S3 server in memory: objects, ranges, lists, multipart uploads, and faults.
class ObjectServer {
 public:
  // Replies in place of the server; an empty reply: the server does.
  using Fault = std::function<HubReply(const HubRequest& request)>;

  std::shared_ptr<server::BlobStore> Blobs(const std::string& prefix = "pre") const {
    engine::ObjectOptions options;
    options.http.endpoint = server_.url();
    options.http.connections = 2;
    options.http.max_attempts = 2;
    options.http.first_backoff = std::chrono::milliseconds(1);
    options.keys = {"ID", "SECRET", ""};
    options.part_bytes = 1000;
    options.segment_bytes = 1000;
    return std::make_shared<server::ObjectBlobs>(
        engine::ObjectUrl{engine::StoreKind::kS3, "bucket", prefix}, options);
  }

  void SetFault(Fault fault) {
    const std::lock_guard lock(mutex_);
    fault_ = std::move(fault);
  }
  std::vector<std::string> Keys() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> keys;
    for (const auto& [key, text] : objects_) keys.push_back(key);
    return keys;
  }
  void Set(const std::string& key, const std::string& text) {
    const std::lock_guard lock(mutex_);
    objects_[key] = text;
  }
  std::string At(const std::string& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(key);
    return found == objects_.end() ? "" : found->second;
  }
  void Erase(const std::string& key) {
    const std::lock_guard lock(mutex_);
    objects_.erase(key);
  }
  size_t n_uploads() const {
    const std::lock_guard lock(mutex_);
    return uploads_.size();
  }
  // Leaves an upload behind, as a killed process does.
  void BeginUpload(const std::string& key) {
    const std::lock_guard lock(mutex_);
    uploads_["left"].key = key;
  }
  size_t Count(const std::string& method, const std::string& part) const {
    size_t n = 0;
    for (const HubRequest& request : server_.requests()) {
      if (request.method == method && request.target.find(part) != std::string::npos) ++n;
    }
    return n;
  }

 private:
  struct Upload {
    std::string key;
    std::map<int, std::string> parts;
  };

  static std::string Query(const std::string& target, const std::string& name) {
    const size_t at = target.find(name + "=");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 1;
    const size_t end = std::min(target.find('&', begin), target.size());
    return PercentDecode(target.substr(begin, end - begin)).value_or("");
  }
  // Any text that changes with the content.
  static std::string Etag(const std::string& text) {
    return "\"" + std::to_string(std::hash<std::string>()(text)) + "\"";
  }

  HubReply Handle(const HubRequest& request) {
    const std::lock_guard lock(mutex_);
    if (fault_) {
      HubReply reply = fault_(request);
      if (!reply.bytes.empty()) return reply;
    }
    const std::string path =
        PercentDecode(request.target.substr(0, request.target.find('?'))).value_or("");
    const std::string key = path.substr(std::min(path.size(), std::string("/bucket/").size()));
    if (key.empty()) return Listing(request.target);
    if (request.method == "PUT") return Put(request, key);
    if (request.method == "POST") return Post(request, key);
    if (request.method == "DELETE") {
      if (const std::string id = Query(request.target, "uploadId"); !id.empty()) {
        uploads_.erase(id);
      } else {
        objects_.erase(key);
      }
      return {Reply(204, "", "")};
    }
    return Get(request, key);
  }

  HubReply Put(const HubRequest& request, const std::string& key) {
    const std::string id = Query(request.target, "uploadId");
    if (id.empty()) {
      objects_[key] = request.body;
    } else {
      uploads_[id].parts[std::stoi(Query(request.target, "partNumber"))] = request.body;
    }
    return {Reply(200, "ETag: " + Etag(request.body) + "\r\n", "")};
  }

  HubReply Post(const HubRequest& request, const std::string& key) {
    const std::string id = Query(request.target, "uploadId");
    if (id.empty()) {
      const std::string begun = "u" + std::to_string(++n_begun_);
      uploads_[begun].key = key;
      return {Reply(200, "",
                    "<InitiateMultipartUploadResult><UploadId>" + begun +
                        "</UploadId></InitiateMultipartUploadResult>")};
    }
    std::string whole;
    for (const auto& [number, part] : uploads_[id].parts) whole += part;
    objects_[key] = whole;
    uploads_.erase(id);
    return {Reply(200, "", "<CompleteMultipartUploadResult/>")};
  }

  HubReply Get(const HubRequest& request, const std::string& key) const {
    const auto found = objects_.find(key);
    const bool is_head = request.method == "HEAD";
    if (found == objects_.end()) return {Reply(404, "", "", is_head)};
    const std::string& text = found->second;
    const std::string etag = "ETag: " + Etag(text) + "\r\n";
    const auto range = request.fields.find("range");
    if (range == request.fields.end()) return {Reply(200, etag, text, is_head)};
    size_t first = 0;
    size_t last = 0;
    std::sscanf(range->second.c_str(), "bytes=%zu-%zu", &first, &last);
    return {Reply(206,
                  etag + "Content-Range: bytes " + std::to_string(first) + "-" +
                      std::to_string(last) + "/" + std::to_string(text.size()) + "\r\n",
                  text.substr(first, last + 1 - first))};
  }

  HubReply Listing(const std::string& target) const {
    const std::string prefix = Query(target, "prefix");
    if (target.find("uploads=") != std::string::npos) {
      std::string body = "<ListMultipartUploadsResult>";
      for (const auto& [id, upload] : uploads_) {
        if (!upload.key.starts_with(prefix)) continue;
        body += "<Upload><Key>" + upload.key + "</Key><UploadId>" + id + "</UploadId></Upload>";
      }
      return {Reply(200, "", body + "</ListMultipartUploadsResult>")};
    }
    std::string body = "<ListBucketResult><IsTruncated>false</IsTruncated>";
    for (const auto& [key, text] : objects_) {
      if (!key.starts_with(prefix)) continue;
      body += "<Contents><Key>" + engine::XmlEscaped(key) + "</Key><Size>" +
              std::to_string(text.size()) + "</Size><ETag>" + engine::XmlEscaped(Etag(text)) +
              "</ETag></Contents>";
    }
    return {Reply(200, "", body + "</ListBucketResult>")};
  }

  mutable std::mutex mutex_;  // guards the members below
  Fault fault_;
  std::map<std::string, std::string> objects_;
  std::map<std::string, Upload> uploads_;
  int n_begun_ = 0;
  HubServer server_{[this](const HubRequest& request) { return Handle(request); }};
};

}  // namespace tandem::tests
