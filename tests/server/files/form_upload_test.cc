#include "server/files/form_upload.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

using namespace std::chrono_literals;

class FormUploadTest : public testing::Test {
 protected:
  FormUploadTest() : store_({.data_dir = dir_.path(), .max_file_bytes = 1 << 20}) {}

  std::shared_ptr<FormUpload> Begin(std::function<void()> has_room = {}) {
    return FormUpload::Open(store_, "multipart/form-data; boundary=abc", {"purpose"},
                            std::move(has_room));
  }
  static std::string Part(const std::string& params, const std::string& bytes) {
    return "--abc\r\nContent-Disposition: form-data; " + params + "\r\n\r\n" + bytes + "\r\n";
  }
  // Finishes the upload: "stored", or the reason and param of its fault.
  static std::string Finish(FormUpload& upload, UploadedForm* form_out = nullptr) {
    std::promise<std::string> end;
    upload.Finish(
        [&](UploadedForm form) {
          if (form_out != nullptr) *form_out = std::move(form);
          end.set_value("stored");
        },
        [&](const std::exception_ptr& fault) {
          try {
            std::rethrow_exception(fault);
          } catch (const Error& error) {
            end.set_value(error.reason() + " " + error.param());
          }
        });
    return end.get_future().get();
  }
  size_t FilesOnDisk() const {
    size_t n = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(dir_.path() / "files")) {
      ++n;
    }
    return n;
  }
  tests::TemporaryDir dir_;
  FileStore store_;
};

TEST_F(FormUploadTest, AFormComesApartIntoAFileAndFields) {
  const auto upload = Begin();
  const std::string bytes(300'000, 'x');
  upload->Write(Part("name=other", "1") + Part("name=purpose", "fine-tune"));
  upload->Write(Part("name=file; filename=\"a/b.txt\"", bytes) + "--abc--");

  UploadedForm form;
  ASSERT_EQ(Finish(*upload, &form), "stored");

  EXPECT_EQ(form.fields, (std::map<std::string, std::string>{{"purpose", "fine-tune"}}));
  EXPECT_EQ(form.unknown, std::vector<std::string>{"other"});
  EXPECT_EQ(form.filename, "a/b.txt");
  ASSERT_TRUE(form.file);
  EXPECT_EQ(form.file->bytes(), 300'000);
}

TEST_F(FormUploadTest, FaultsAreToldAtTheEndAndLeaveNothing) {
  const std::string file = Part("name=file; filename=x", "abc");
  const std::string field = Part("name=purpose", "fine-tune");
  const struct {
    std::string body;
    const char* fault;
  } cases[] = {
      {file + field, "invalid_value "},  // no closing boundary
      {file + file + "--abc--", "invalid_value file"},
      {field + field + "--abc--", "invalid_value purpose"},
      {Part("name=purpose", std::string(1025, 'x')) + "--abc--", "invalid_value "},
      {Part("name=file; filename=x", std::string((1 << 20) + 1, 'x')) + "--abc--",
       "request_too_large file"},
  };
  for (const auto& one : cases) {
    const auto upload = Begin();
    upload->Write(one.body);
    upload->Write("more that nobody needs");
    EXPECT_EQ(Finish(*upload), one.fault);
    EXPECT_EQ(FilesOnDisk(), 0u);
  }
  const auto largest = Begin();
  largest->Write(Part("name=file; filename=x", std::string(1 << 20, 'x')) + "--abc--");
  EXPECT_EQ(Finish(*largest), "stored");
}

TEST_F(FormUploadTest, ContentTypesThatAreNoFormsAreRefusedAtOnce) {
  const auto reason = [&](const char* type) -> std::string {
    try {
      FormUpload::Open(store_, type, {}, {});
    } catch (const Error& error) {
      return error.reason();
    }
    return "accepted";
  };
  EXPECT_EQ(reason(""), "unsupported_media_type");
  EXPECT_EQ(reason("application/json"), "unsupported_media_type");
  EXPECT_EQ(reason("multipart/form-data"), "invalid_value");
  EXPECT_EQ(reason("multipart/form-data; boundary=x"), "accepted");
}

TEST_F(FormUploadTest, AnUploadThatIsLeftInTheMiddleLeavesNothing) {
  auto upload = Begin();
  upload->Write("--abc\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\nhalf");
  while (FilesOnDisk() != 1) std::this_thread::yield();

  upload.reset();

  while (FilesOnDisk() != 0) std::this_thread::yield();  // or the test times out
}

TEST_F(FormUploadTest, HasEnoughWhileItsThreadsAreBusyAndSaysWhenThereIsRoom) {
  // Not semaphores: libstdc++ 12 may lose the wake-up of one of two waiters.
  std::promise<void> go;
  const std::shared_future<void> may_go = go.get_future().share();
  std::array<std::promise<void>, 2> busy;
  for (std::promise<void>& each : busy) {
    store_.Post([&each, may_go] {
      each.set_value();
      may_go.wait();
    });
  }
  for (std::promise<void>& each : busy) each.get_future().wait();
  std::promise<void> room;
  std::future<void> has_room = room.get_future();
  const auto upload = Begin([&] { room.set_value(); });

  size_t waiting = 0;
  const std::string piece(16 << 10, 'x');
  do {
    waiting += piece.size();
  } while (upload->Write(piece));
  EXPECT_EQ(waiting, FormUpload::kMaxWaiting);
  EXPECT_EQ(has_room.wait_for(0s), std::future_status::timeout);

  go.set_value();
  EXPECT_EQ(has_room.wait_for(60s), std::future_status::ready);
  EXPECT_TRUE(upload->Write(piece));
}

// A file size limit makes the kernel refuse writes as a full disk does.
TEST_F(FormUploadTest, AFullDiskIsToldAndLeavesNothing) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 100'000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);

  const auto upload = Begin();
  upload->Write(Part("name=file; filename=x", std::string(200'000, 'x')) + "--abc--");
  const std::string fault = Finish(*upload);

  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(fault, "insufficient_storage ");
  EXPECT_EQ(FilesOnDisk(), 0u);
}

}  // namespace
}  // namespace tandem::server
