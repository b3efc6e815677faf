#include "engine/objects/object_client.h"

#include <algorithm>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/base/url.h"
#include "engine/objects/object_answer.h"
#include "engine/objects/xml_reader.h"

namespace tandem::engine {
namespace {

// A page of a list has at most 1000 keys of 1 KiB, each byte of which may be a reference.
constexpr size_t kMaxListBytes = size_t{16} << 20;
constexpr size_t kMaxTokenText = 8192;  // of a continuation token or an upload's id
// Fewer bytes between two faults do not count as progress.
constexpr size_t kMinProgress = size_t{64} << 10;

// An ETag goes into fields of requests: quotes around visible characters.
bool IsEtag(std::string_view etag) {
  return etag.size() > 2 && etag.size() <= 256 && etag.front() == '"' && etag.back() == '"' &&
         std::all_of(etag.begin() + 1, etag.end() - 1,
                     [](char c) { return c > 0x20 && c < 0x7f && c != '"'; });
}

bool IsTokenText(std::string_view text) {
  return !text.empty() && text.size() <= kMaxTokenText &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

std::string CheckedEtag(const HttpHead& head, const std::string& where) {
  const std::string_view etag = head.Find("etag");
  if (!IsEtag(etag)) {
    throw Error(ErrorCode::kDataLoss, where + ": the response has no valid ETag");
  }
  return std::string(etag);
}

uint64_t CheckedLength(const HttpHead& head, const std::string& where) {
  const std::optional<uint64_t> size = ParseSize(head.Find("content-length"));
  if (!size)
    throw Error(ErrorCode::kDataLoss, where + ": the response has no valid Content-Length");
  return *size;
}

// Lists encode keys as queries do: '+' is a space.
std::string DecodedKey(std::string text, const std::string& where) {
  std::replace(text.begin(), text.end(), '+', ' ');
  std::optional<std::string> key = PercentDecode(text);
  if (!key) throw Error(ErrorCode::kDataLoss, where + ": the list has a key with a bad encoding");
  return *std::move(key);
}

}  // namespace

template <class Action>
auto ObjectClient::Retry(const Call& call, const Action& action) {
  Backoff backoff(store_.http(), PatienceOfStore());
  for (;;) {
    std::optional<decltype(action())> result;
    const auto fault = ExceptionOf<TransientFault>([&] { result.emplace(action()); });
    if (!fault) return *std::move(result);
    WaitAfter(call, *fault, backoff);
  }
}

std::optional<ObjectInfo> ObjectClient::Find(const std::string& key) {
  const Call call{.method = "HEAD", .key = key, .accepted_status = 404};
  return Retry(call, [&]() -> std::optional<ObjectInfo> {
    const HttpHead head = Send(call);
    if (head.status == 404) return std::nullopt;
    return ObjectInfo{key, CheckedLength(head, Where(call)), CheckedEtag(head, Where(call))};
  });
}

std::vector<ObjectInfo> ObjectClient::List(const std::string& prefix, size_t max_objects) {
  std::vector<ObjectInfo> objects;
  std::string token;
  for (;;) {
    Call call{.method = "GET", .key = ""};
    call.query = {{"list-type", "2"}, {"encoding-type", "url"}, {"prefix", prefix}};
    if (!token.empty()) call.query.emplace_back("continuation-token", token);
    const XmlElement page = Retry(call, [&] {
      Send(call);
      return WithContext("list of " + store_.Name(prefix) + ": ",
                         [&] { return ParseXml(Body(kMaxListBytes)); });
    });
    const std::string where = "list of " + EscapeJson(store_.Name(prefix));
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorCode::kDataLoss, where + ": " + why);
    };
    if (page.name != "ListBucketResult") refuse("the response is not a list of objects");
    const bool is_encoded = page.TextOf("EncodingType") == "url";
    for (const XmlElement& entry : page.children) {
      if (entry.name != "Contents") continue;
      ObjectInfo info;
      info.key = entry.TextOf("Key");
      if (is_encoded) info.key = DecodedKey(std::move(info.key), where);
      info.etag = entry.TextOf("ETag");
      if (!info.etag.starts_with('"')) info.etag = "\"" + info.etag + "\"";
      const std::optional<uint64_t> size = ParseSize(entry.TextOf("Size"));
      if (!size) refuse("an object without a valid size");
      info.size = *size;
      if (!IsEtag(info.etag)) refuse("an object without a valid ETag");
      if (!info.key.starts_with(prefix)) refuse("a key that is not below the prefix");
      // Also ends a server that sends the same page again and again.
      if (!objects.empty() && info.key <= objects.back().key) refuse("the keys are not in order");
      if (objects.size() == max_objects) {
        refuse("more than " + std::to_string(max_objects) +
               " objects; name a smaller part of the bucket");
      }
      objects.push_back(std::move(info));
    }
    if (page.TextOf("IsTruncated") != "true") return objects;
    std::string next = page.TextOf("NextContinuationToken");
    if (!IsTokenText(next) || next == token) refuse("it is cut, without a token for the rest");
    token = std::move(next);
  }
}

void ObjectClient::ReadRange(const ObjectInfo& info, uint64_t begin, std::span<char> out) {
  TANDEM_CHECK(begin <= info.size && out.size() <= info.size - begin);
  size_t n_read = 0;
  size_t at_last_fault = 0;
  Backoff backoff(store_.http(), PatienceOfStore());
  while (n_read < out.size()) {
    const auto fault = ExceptionOf<TransientFault>([&] { ReadOnce(info, begin, out, n_read); });
    if (!fault) continue;
    if (n_read >= at_last_fault + kMinProgress) {
      backoff.Progressed();
      at_last_fault = n_read;
    }
    WaitAfter({.method = "GET", .key = info.key}, *fault, backoff);
  }
}

void ObjectClient::ReadOnce(const ObjectInfo& info, uint64_t begin, std::span<char> out,
                            size_t& n_read) {
  const uint64_t first = begin + n_read;
  const uint64_t last = begin + out.size() - 1;
  const std::string range = std::to_string(first) + "-" + std::to_string(last);
  const Call call{.method = "GET",
                  .key = info.key,
                  .fields = {{"if-match", info.etag}, {"range", "bytes=" + range}},
                  .accepted_status = 412};
  const HttpHead head = Send(call);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::kDataLoss, Where(call) + ": " + why);
  };
  if (head.status == 412 || head.Find("etag") != info.etag) {
    refuse("the object changed while it was read: run the same command again");
  }
  const bool is_whole = head.status == 200 && first == 0 && last + 1 == info.size;
  const std::string expected = "bytes " + range + "/" + std::to_string(info.size);
  if (!is_whole && (head.status != 206 || head.Find("content-range") != expected)) {
    refuse("requested bytes " + range + " of " + std::to_string(info.size) +
           ", but the response has status " + std::to_string(head.status) + " and Content-Range " +
           Quoted(head.Find("content-range"), 80));
  }
  if (CheckedLength(head, Where(call)) != last + 1 - first) {
    refuse("requested bytes " + range + ", but Content-Length is " +
           Quoted(head.Find("content-length"), 30));
  }
  while (n_read < out.size()) {
    const size_t n = http_.ReadBody(out.subspan(n_read));
    if (n == 0) throw TransientFault(ErrorCode::kUnavailable, "the response ended too early");
    n_read += n;
  }
  // Reads the end of the body, so that the connection can be kept.
  char rest = 0;
  if (http_.ReadBody(std::span(&rest, 1)) != 0) refuse("the response is too long");
}

std::optional<std::string> ObjectClient::Read(const std::string& key, size_t max_bytes) {
  const Call call{.method = "GET", .key = key, .accepted_status = 404};
  return Retry(call, [&]() -> std::optional<std::string> {
    const HttpHead head = Send(call);
    if (head.status == 404) return std::nullopt;
    const uint64_t size = CheckedLength(head, Where(call));
    if (size > max_bytes) {
      throw Error(ErrorCode::kDataLoss, Where(call) + ": it has " + std::to_string(size) +
                                            " bytes, more than the limit of " +
                                            std::to_string(max_bytes));
    }
    return Body(max_bytes);
  });
}

void ObjectClient::Put(const std::string& key, const ObjectBody& body) {
  const Call call{.method = "PUT", .key = key, .body = body};
  Retry(call, [&] {
    const int status = Send(call).status;
    Body(kMaxAnswerBytes);
    return status;
  });
}

void ObjectClient::Delete(const std::string& key) {
  const Call call{.method = "DELETE", .key = key, .accepted_status = 404};
  Retry(call, [&] { return Send(call).status; });
}

std::string ObjectClient::BeginUpload(const std::string& key) {
  const Call call{.method = "POST", .key = key, .query = {{"uploads", ""}}};
  return Retry(call, [&] {
    Send(call);
    const XmlElement answer =
        WithContext(Where(call) + ": ", [&] { return ParseXml(Body(kMaxAnswerBytes)); });
    std::string upload = answer.TextOf("UploadId");
    if (!IsTokenText(upload)) {
      throw Error(ErrorCode::kDataLoss, Where(call) + ": the response has no valid upload id");
    }
    return upload;
  });
}

std::string ObjectClient::PutPart(const std::string& key, const std::string& upload, int number,
                                  const ObjectBody& body) {
  const Call call{.method = "PUT",
                  .key = key,
                  .query = {{"partNumber", std::to_string(number)}, {"uploadId", upload}},
                  .body = body};
  return Retry(call, [&] {
    const HttpHead head = Send(call);
    Body(kMaxAnswerBytes);
    return CheckedEtag(head, Where(call));
  });
}

void ObjectClient::FinishUpload(const std::string& key, const std::string& upload,
                                const std::vector<std::string>& etags) {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i) {
    body += "<Part><PartNumber>" + std::to_string(i + 1) + "</PartNumber><ETag>" +
            XmlEscaped(etags[i]) + "</ETag></Part>";
  }
  body += "</CompleteMultipartUpload>";
  const Call call{
      .method = "POST", .key = key, .query = {{"uploadId", upload}}, .body = ObjectBody::Of(body)};
  Retry(call, [&] {
    HttpHead head = Send(call);
    const XmlElement answer =
        WithContext(Where(call) + ": ", [&] { return ParseXml(Body(kMaxAnswerBytes)); });
    // The store may find a fault after it has sent the status 200.
    if (answer.name == "CompleteMultipartUploadResult") return true;
    const std::string code = answer.TextOf("Code");
    const std::string message = Where(call) + ": the upload was refused at its end: " +
                                Quoted(WithoutKeys(code, store_.options().keys), 60);
    if (IsTransientAnswer(0, code)) throw TransientFault(ErrorCode::kUnavailable, message);
    throw Error(ErrorCode::kFailedPrecondition, message);
  });
}

void ObjectClient::AbortUpload(const std::string& key, const std::string& upload) {
  const Call call{
      .method = "DELETE", .key = key, .query = {{"uploadId", upload}}, .accepted_status = 404};
  Retry(call, [&] { return Send(call).status; });
}

std::vector<UnfinishedUpload> ObjectClient::UnfinishedUploads(const std::string& prefix) {
  const Call call{.method = "GET",
                  .key = "",
                  .query = {{"uploads", ""}, {"encoding-type", "url"}, {"prefix", prefix}}};
  const std::string where = "list of the uploads of " + EscapeJson(store_.Name(prefix));
  const XmlElement page = Retry(call, [&] {
    Send(call);
    return WithContext(where + ": ", [&] { return ParseXml(Body(kMaxListBytes)); });
  });
  if (page.name != "ListMultipartUploadsResult") {
    throw Error(ErrorCode::kDataLoss, where + ": the response is not a list of uploads");
  }
  const bool is_encoded = page.TextOf("EncodingType") == "url";
  std::vector<UnfinishedUpload> uploads;
  for (const XmlElement& entry : page.children) {
    if (entry.name != "Upload") continue;
    UnfinishedUpload upload{entry.TextOf("Key"), entry.TextOf("UploadId")};
    if (is_encoded) upload.key = DecodedKey(std::move(upload.key), where);
    if (!upload.key.starts_with(prefix) || !IsTokenText(upload.id)) {
      throw Error(ErrorCode::kDataLoss, where + ": it has an upload without a valid key and id");
    }
    uploads.push_back(std::move(upload));
  }
  return uploads;
}

}  // namespace tandem::engine
