#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/files/file_store.h"
#include "server/files/temporary_file.h"
#include "server/http/body_sink.h"
#include "server/http/syntax/multipart_parser.h"

namespace tandem::server {

// What a form has brought.
struct UploadedForm {
  bool has_file_part = false;           // some part is called "file"
  std::optional<std::string> filename;  // of that part, as the client wrote it; absent: it has none
  std::optional<TemporaryFile> file;    // its bytes, if it has a filename
  std::map<std::string, std::string> fields;
  std::vector<std::string> unknown;  // names of parts that nobody asked for
};

// A multipart form on its way to disk. The io thread hands over bytes and goes on; the store's
// threads take the form apart and write. Holds at most kMaxWaiting bytes and one read of them. What
// is wrong with the form is kept until its end. Dropped before that, it leaves nothing.
class FormUpload : public BodySink, public std::enable_shared_from_this<FormUpload> {
 public:
  static constexpr size_t kMaxWaiting = 256 << 10;
  static constexpr size_t kMaxFieldBytes = 1 << 10;

  // `fields` are the names of the parts wanted beside "file". Throws kInvalidArgument for a content
  // type that is no form's (unsupported_media_type) or names no usable boundary. `has_room` as
  // BodySink says. The store must outlive the upload.
  static std::shared_ptr<FormUpload> Open(FileStore& store, std::string_view content_type,
                                          std::vector<std::string> fields,
                                          std::function<void()> has_room);

  bool Write(std::string_view bytes) override;

  // The body is complete. Calls `on_form` on one of the store's threads when the form is; what that
  // throws, and what was wrong before, goes to `on_fault`. Once.
  void Finish(std::function<void(UploadedForm)> on_form,
              std::function<void(std::exception_ptr)> on_fault);

 private:
  FormUpload(FileStore& store, std::string_view boundary, std::vector<std::string> fields,
             std::function<void()> has_room);

  void PostPump();
  void Pump();
  // Of the thread that pumps, one at a time.
  void Consume(std::string_view bytes);
  void OnPart(const PartHead& head);
  void OnData(std::string_view bytes);
  void End();

  FileStore& store_;
  const std::vector<std::string> wanted_;
  const std::function<void()> has_room_;

  std::mutex mutex_;  // guards the next five
  std::string waiting_;
  bool is_pumping_ = false;
  bool wants_room_ = false;
  std::function<void(UploadedForm)> on_form_;
  std::function<void(std::exception_ptr)> on_fault_;

  // Used by whoever pumps.
  MultipartParser parser_;
  UploadedForm form_;
  std::string* field_ = nullptr;  // that the bytes of the part belong to; null: not to a field
  bool is_in_file_ = false;
  std::exception_ptr fault_;
};

}  // namespace tandem::server
