// rdma_bcast over verbs: one reliable connection, SEND and RECV, local access alone.
#include <errno.h>
#include <rdmalloc/registrar_verbs.h>

#include "bench/rdma/fabric.h"

namespace rdmalloc::bench {
namespace {

struct Address {
  ibv_gid gid;
  std::uint32_t queue_pair;
};

class Verbs : public Fabric {
 public:
  Verbs(KeySource keys, int socket) : keys_(keys) {
    // Opened as a domain also where it is not asked for keys: one way to find the device.
    if (int error = rdmalloc_domain_open_verbs_device(nullptr, 0, nullptr, &pd_, &domain_))
      fail("no verbs device with an active port", error);
    queue_ = ibv_create_cq(pd_->context, 4, nullptr, nullptr, 0);
    ibv_qp_init_attr attr = {};
    attr.send_cq = attr.recv_cq = queue_;
    attr.qp_type = IBV_QPT_RC;
    attr.cap = {2, 2, 1, 1, 0};
    pair_ = queue_ != nullptr ? ibv_create_qp(pd_, &attr) : nullptr;
    if (pair_ == nullptr) fail("ibv_create_qp", -errno);
    connect(socket);
  }
  ~Verbs() override {
    ibv_destroy_qp(pair_);
    ibv_destroy_cq(queue_);
    rdmalloc_domain_close(domain_);
  }
  Verbs(const Verbs&) = delete;
  Verbs& operator=(const Verbs&) = delete;

  void send(void* buffer, std::size_t bytes) override {
    Registered registered(*this, buffer, bytes);
    ibv_sge piece = registered.piece();
    ibv_send_wr request = {}, *bad = nullptr;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    if (int error = ibv_post_send(pair_, &request, &bad)) fail("ibv_post_send", -error);
    await();
  }
  void receive(void* buffer, std::size_t bytes, void (*posted)(void*), void* argument) override {
    Registered registered(*this, buffer, bytes);
    ibv_sge piece = registered.piece();
    ibv_recv_wr request = {}, *bad = nullptr;
    request.sg_list = &piece;
    request.num_sge = 1;
    if (int error = ibv_post_recv(pair_, &request, &bad)) fail("ibv_post_recv", -error);
    posted(argument);
    await();
  }

 private:
  // A buffer's registration, for the time of one transfer.
  class Registered {
   public:
    Registered(Verbs& verbs, void* buffer, std::size_t bytes) : buffer_(buffer), bytes_(bytes) {
      if (verbs.keys_ != KeySource::rdmalloc) {
        own_ = ibv_reg_mr(verbs.pd_, buffer, bytes, IBV_ACCESS_LOCAL_WRITE);
        if (own_ == nullptr) fail("ibv_reg_mr", -errno);
        lkey_ = own_->lkey;
      } else {
        if (int error =
                rdmalloc_reg_get(verbs.domain_, buffer, bytes, RDMALLOC_ACCESS_LOCAL, &cached_))
          fail("rdmalloc_reg_get", error);
        rdmalloc_key key;
        rdmalloc_reg_key_of(cached_, &key);
        lkey_ = static_cast<std::uint32_t>(key.lkey);
      }
    }
    ~Registered() {
      if (own_ != nullptr) ibv_dereg_mr(own_);
      rdmalloc_reg_put(cached_);
    }
    Registered(const Registered&) = delete;
    Registered& operator=(const Registered&) = delete;
    ibv_sge piece() const {
      return {reinterpret_cast<std::uintptr_t>(buffer_), static_cast<std::uint32_t>(bytes_), lkey_};
    }

   private:
    void* buffer_;
    std::size_t bytes_;
    ibv_mr* own_ = nullptr;
    rdmalloc_reg* cached_ = nullptr;
    std::uint32_t lkey_ = 0;
  };

  void modify(ibv_qp_attr& attr, int mask) {
    if (int error = ibv_modify_qp(pair_, &attr, mask)) fail("ibv_modify_qp", -error);
  }

  // The last GID of the port that is set: soft-RoCE's first one is link-local.
  std::uint8_t gid_index(ibv_gid& gid) {
    ibv_port_attr port = {};
    if (ibv_query_port(pd_->context, 1, &port) != 0) fail("ibv_query_port", -EIO);
    mtu_ = port.active_mtu;
    for (int i = port.gid_tbl_len - 1; i >= 0; --i)
      if (ibv_query_gid(pd_->context, 1, i, &gid) == 0 &&
          (gid.global.interface_id != 0 || gid.global.subnet_prefix != 0))
        return static_cast<std::uint8_t>(i);
    fail("the device has no GID", -ENODEV);
  }

  void connect(int socket) {
    Address own = {}, other = {};
    const std::uint8_t index = gid_index(own.gid);
    own.queue_pair = pair_->qp_num;
    put(socket, &own, sizeof own);
    get(socket, &other, sizeof other);
    ibv_qp_attr attr = {};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    modify(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    attr = {};
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = mtu_;
    attr.dest_qp_num = other.queue_pair;
    attr.max_dest_rd_atomic = 1;
    attr.min_rnr_timer = 12;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = other.gid;
    attr.ah_attr.grh.sgid_index = index;
    attr.ah_attr.grh.hop_limit = 1;
    attr.ah_attr.port_num = 1;
    modify(attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    attr = {};
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.rnr_retry = 7;
    attr.max_rd_atomic = 1;
    modify(attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  }

  void await() {
    ibv_wc done;
    int got;
    for (Patience patience; (got = ibv_poll_cq(queue_, 1, &done)) == 0;) patience.found_nothing();
    if (got < 0 || done.status != IBV_WC_SUCCESS) fail("the transfer failed", -EIO);
  }

  KeySource keys_;
  ibv_pd* pd_ = nullptr;
  rdmalloc_domain* domain_ = nullptr;
  ibv_cq* queue_ = nullptr;
  ibv_qp* pair_ = nullptr;
  ibv_mtu mtu_ = IBV_MTU_1024;
};

}  // namespace

std::unique_ptr<Fabric> open_verbs(KeySource keys, int socket) {
  return std::make_unique<Verbs>(keys, socket);
}

}  // namespace rdmalloc::bench
