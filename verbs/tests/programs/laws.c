/* What the manual pages of verbs promise, on two QPs of one device that are connected to each other.
   Each law that does not hold is said, with its line, and ends the program. */

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LAW(holds)                                                                 \
	do {                                                                       \
		if (!(holds)) {                                                    \
			fprintf(stderr, "laws.c:%d: %s (errno %d)\n", __LINE__,    \
				#holds, errno);                                    \
			exit(1);                                                   \
		}                                                                  \
	} while (0)

enum { SIZE = 4096, PATIENCE_MS = 10000 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq_ex *cq_ex;
static struct ibv_cq *cq;
static struct ibv_qp *left, *right;
static struct ibv_mr *mr;
static char *memory;
static union ibv_gid gid;

static int is_readable(int fd, int wait_ms)
{
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	return poll(&polled, 1, wait_ms) == 1;
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int count = 0;
	for (int n = 0; n < PATIENCE_MS && count == 0; n++) {
		count = ibv_poll_cq(cq, 1, &wc);
		if (count == 0)
			usleep(1000);
	}
	LAW(count == 1);
	return wc;
}

static void open_all(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	LAW(list && count == 1 && !list[1]);
	context = ibv_open_device(list[0]);
	LAW(context);
	/* A second opening is the same device. */
	struct ibv_context *other = ibv_open_device(list[0]);
	LAW(other && other != context);
	ibv_free_device_list(list);
	union ibv_gid theirs;
	LAW(ibv_query_gid(context, 1, 0, &gid) == 0 && ibv_query_gid(other, 1, 0, &theirs) == 0);
	LAW(memcmp(&gid, &theirs, sizeof(gid)) == 0);
	LAW(ibv_close_device(other) == 0);
	LAW(ibv_query_gid(context, 1, 1, &gid) == -1 && errno == EINVAL);
	LAW(ibv_query_gid(context, 2, 0, &gid) == -1);
	LAW(ibv_query_gid(context, 1, 0, &gid) == 0);
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	LAW(pd && channel);
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 64,
		.channel = channel,
		.cq_context = &cq,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};
	cq_ex = ibv_create_cq_ex(context, &attr);
	LAW(cq_ex);
	cq = ibv_cq_ex_to_cq(cq_ex);
	LAW(cq->cqe >= 64);
	attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
	LAW(!ibv_create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
	memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	LAW(memory != MAP_FAILED);
}

static void regions(void)
{
	int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		  IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
	LAW(!ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	LAW(!ibv_reg_mr(pd, memory, SIZE, all | IBV_ACCESS_ON_DEMAND) && errno == EOPNOTSUPP);
	LAW(!ibv_reg_mr(pd, (void *)8, SIZE, all) && errno == EFAULT);
	char *text = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	LAW(!ibv_reg_mr(pd, text, SIZE, all) && errno == EFAULT);
	mr = ibv_reg_mr(pd, text, SIZE, 0);
	LAW(mr && mr->addr == text && mr->length == SIZE);
	LAW(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, NULL,
			 memory, SIZE, all) == 0);
	LAW(mr->addr == memory);
	LAW(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT);
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	LAW(window && ibv_dealloc_mw(window) == 0);
	LAW(ibv_dealloc_pd(pd) == EBUSY);
}

static struct ibv_qp *make_qp(void)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 3,
			 .max_recv_sge = 3, .max_inline_data = 64 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_WRITE |
				  IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);
	LAW(qp && qp->state == IBV_QPS_RESET && attr.cap.max_inline_data >= 64);
	attr.qp_type = IBV_QPT_XRC_SEND;
	LAW(!ibv_create_qp_ex(context, &attr) && errno == EOPNOTSUPP);
	return qp;
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	LAW(ibv_modify_qp(qp, &attr, mask) == EINVAL);
	LAW(ibv_modify_qp(qp, &attr, mask | IBV_QP_ACCESS_FLAGS) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1,
			     .grh = { .dgid = gid, .hop_limit = 3 } },
	};
	mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	LAW(ibv_modify_qp(qp, &attr, mask & ~IBV_QP_AV) == EINVAL);
	LAW(ibv_modify_qp(qp, &attr, mask | IBV_QP_ALT_PATH) == EOPNOTSUPP);
	attr.ah_attr.is_global = 0;
	LAW(ibv_modify_qp(qp, &attr, mask) == EINVAL);
	attr.ah_attr.is_global = 1;
	LAW(ibv_modify_qp(qp, &attr, mask) == 0 && qp->state == IBV_QPS_RTR);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7,
				     .rnr_retry = 7, .max_rd_atomic = 4 };
	mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
	LAW(ibv_modify_qp(qp, &attr, mask) == 0 && qp->state == IBV_QPS_RTS);
	struct ibv_qp_init_attr init;
	LAW(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	LAW(attr.qp_state == IBV_QPS_RTS && attr.dest_qp_num == peer->qp_num);
	LAW(attr.path_mtu == IBV_MTU_1024 && attr.ah_attr.grh.hop_limit == 3);
	LAW(memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof(gid)) == 0 && init.send_cq == cq);
}

static void receive(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory + 2048, 64, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	LAW(ibv_post_recv(right, &wr, &bad) == 0);
}

static void lists_of_requests(void)
{
	struct ibv_sge sges[2] = { { (uintptr_t)"hel", 3, 0 }, { (uintptr_t)"lo", 3, 0 } };
	struct ibv_send_wr *bad, wrs[2] = { 0 };
	receive(1);
	wrs[0].wr_id = 7;
	wrs[0].next = &wrs[1];
	wrs[0].sg_list = sges;
	wrs[0].num_sge = 2;
	wrs[0].opcode = IBV_WR_SEND_WITH_IMM;
	wrs[0].send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	wrs[0].imm_data = 0x01020304;
	wrs[1] = wrs[0];
	wrs[1].next = NULL;
	wrs[1].num_sge = 17;
	wrs[1].send_flags = 0;
	/* The first one is posted, and the second is named. */
	LAW(ibv_post_send(left, wrs, &bad) == EINVAL && bad == &wrs[1]);
	for (int n = 0; n < 2; n++) {
		struct ibv_wc wc = completion();
		LAW(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND) {
			LAW(wc.wr_id == 7 && wc.qp_num == left->qp_num);
			continue;
		}
		LAW(wc.opcode == IBV_WC_RECV && wc.wr_id == 1 && wc.byte_len == 6);
		LAW(wc.imm_data == 0x01020304 && wc.wc_flags == IBV_WC_WITH_IMM);
	}
	LAW(strcmp(memory + 2048, "hello") == 0);
}

static void requests_put_together(void)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(left);
	LAW(qp);
	receive(2);
	memset(memory, 0, 2048);
	strcpy(memory + 512, "more");
	ibv_wr_start(qp);
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, mr->rkey, (uintptr_t)memory + 1024);
	ibv_wr_set_inline_data(qp, "data", 5);
	qp->wr_id = 4;
	ibv_wr_atomic_fetch_add(qp, mr->rkey, (uintptr_t)memory + 1536, 5);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory, 8);
	qp->wr_id = 5;
	ibv_wr_send_imm(qp, 0x05060708);
	ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)memory + 512, 5);
	LAW(ibv_wr_complete(qp) == 0);
	int sends = 0, receives = 0;
	while (sends < 3 || receives < 1) {
		struct ibv_poll_cq_attr attr = { 0 };
		int found = ibv_start_poll(cq_ex, &attr);
		LAW(found == 0 || found == ENOENT);
		if (found == ENOENT) {
			usleep(1000);
			continue;
		}
		do {
			LAW(cq_ex->status == IBV_WC_SUCCESS);
			if (ibv_wc_read_opcode(cq_ex) == IBV_WC_RECV) {
				LAW(ibv_wc_read_imm_data(cq_ex) == 0x05060708);
				LAW(ibv_wc_read_byte_len(cq_ex) == 5 && cq_ex->wr_id == 2);
				receives++;
			} else {
				LAW((int)cq_ex->wr_id == 3 + sends++);
			}
		} while ((found = ibv_next_poll(cq_ex)) == 0);
		LAW(found == ENOENT);
		ibv_end_poll(cq_ex);
	}
	LAW(strcmp(memory + 1024, "data") == 0 && strcmp(memory + 2048, "more") == 0);
	LAW(*(uint64_t *)(memory + 1536) == 5);
	/* What is refused posts nothing. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, NULL, 1, 1);
	LAW(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_abort(qp);
}

static void send_one(void)
{
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE };
	receive(6);
	LAW(ibv_post_send(left, &wr, &bad) == 0);
}

static void *wait_in_vain(void *unused)
{
	struct ibv_cq *whose;
	void *own;
	ibv_get_cq_event(channel, &whose, &own);
	return unused;
}

static void *destroy_cq(void *event_cq)
{
	return (void *)(intptr_t)ibv_destroy_cq(event_cq);
}

static void events_of_cqs(void)
{
	struct ibv_cq *whose;
	void *own, *result;
	LAW(!is_readable(channel->fd, 0));
	LAW(ibv_req_notify_cq(cq, 0) == 0);
	send_one();
	LAW(is_readable(channel->fd, PATIENCE_MS));
	LAW(ibv_get_cq_event(channel, &whose, &own) == 0 && whose == cq && own == &cq);
	LAW(!is_readable(channel->fd, 0));
	ibv_ack_cq_events(cq, 1);
	completion();
	int flags = fcntl(channel->fd, F_GETFL);
	fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
	LAW(ibv_get_cq_event(channel, &whose, &own) == -1 && errno == EAGAIN);
	fcntl(channel->fd, F_SETFL, flags);
	/* A thread that waits can be cancelled. */
	pthread_t thread;
	LAW(pthread_create(&thread, NULL, wait_in_vain, NULL) == 0);
	usleep(50000);
	LAW(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
	LAW(result == PTHREAD_CANCELED);
	LAW(ibv_destroy_comp_channel(channel) == EBUSY);
	LAW(ibv_resize_cq(cq, 200) == 0 && cq->cqe >= 200);
}

static void *ack_later(void *event)
{
	usleep(100000);
	memory[0] = 1;
	ibv_ack_async_event(event);
	return NULL;
}

static void errors(void)
{
	struct ibv_async_event event;
	pthread_t thread;
	struct ibv_send_wr *bad, wr = { .wr_id = 9, .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	wr.sg_list = &sge;
	wr.num_sge = 1;
	wr.wr.rdma.remote_addr = (uintptr_t)memory;
	wr.wr.rdma.rkey = mr->rkey ^ 0x5555;
	LAW(ibv_post_send(left, &wr, &bad) == 0);
	struct ibv_wc wc = completion();
	LAW(wc.wr_id == 9 && wc.status == IBV_WC_REM_ACCESS_ERR);
	/* The QP whose memory was asked for hears of it. */
	do {
		LAW(is_readable(context->async_fd, PATIENCE_MS));
		LAW(ibv_get_async_event(context, &event) == 0);
		LAW(event.element.qp == left || event.element.qp == right);
		if (event.event_type != IBV_EVENT_QP_ACCESS_ERR)
			ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_QP_ACCESS_ERR);
	LAW(event.element.qp == right);
	LAW(strcmp(ibv_event_type_str(event.event_type), "unknown") != 0);
	/* Its destruction waits until that is acknowledged. */
	memory[0] = 0;
	LAW(pthread_create(&thread, NULL, ack_later, &event) == 0);
	LAW(ibv_destroy_qp(right) == 0 && memory[0] == 1);
	LAW(pthread_join(thread, NULL) == 0);
}

static void close_all(void)
{
	pthread_t thread;
	void *result;
	LAW(ibv_destroy_cq(cq) == EBUSY);
	LAW(ibv_destroy_qp(left) == 0);
	LAW(ibv_dereg_mr(mr) == 0);
	LAW(pthread_create(&thread, NULL, destroy_cq, cq) == 0);
	LAW(pthread_join(thread, &result) == 0 && result == NULL);
	LAW(ibv_destroy_comp_channel(channel) == 0);
	LAW(ibv_dealloc_pd(pd) == 0);
	LAW(ibv_close_device(context) == 0);
}

int main(void)
{
	open_all();
	regions();
	left = make_qp();
	right = make_qp();
	connect_to(left, right);
	connect_to(right, left);
	lists_of_requests();
	requests_put_together();
	events_of_cqs();
	errors();
	close_all();
	return 0;
}
