/* What the manual pages of verbs promise, on two QPs of one device that are connected to each other. */

#include "laws.h"

struct ibv_context *context;
struct ibv_pd *pd;
struct ibv_comp_channel *channel;
struct ibv_cq_ex *cq_ex;
struct ibv_cq *cq;
struct ibv_qp *left, *right;
struct ibv_mr *mr;
char *memory;
union ibv_gid gid;

int is_readable(int fd, int wait_ms)
{
	struct pollfd polled = { .fd = fd, .events = POLLIN };
	return poll(&polled, 1, wait_ms) == 1;
}

struct ibv_wc completion(void)
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
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	cq_ex = ibv_create_cq_ex(context, &attr);
	LAW(cq_ex);
	cq = ibv_cq_ex_to_cq(cq_ex);
	LAW(cq->cqe >= 64);
	attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
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

struct ibv_qp *make_qp(struct ibv_cq *of)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = of,
		.recv_cq = of,
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

void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
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
	LAW(memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof(gid)) == 0 && init.send_cq == qp->send_cq);
}

void receive(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)memory + 2048, 64, mr->lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 };
	LAW(ibv_post_recv(right, &wr, &bad) == 0);
}

static void *destroy_cq(void *event_cq)
{
	return (void *)(intptr_t)ibv_destroy_cq(event_cq);
}

static void children(void)
{
	/* Programs ask for it before all else, and later: it needs nothing. */
	LAW(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	/* Registered memory: a child has what there was, and nothing of what either does then. */
	volatile char *byte = memory + SIZE - 1;
	char before = *byte;
	*byte = 5;
	pid_t child = fork();
	*byte += 1;
	if (child == 0) {
		struct ibv_device_attr attr;
		struct ibv_async_event event;
		struct ibv_wc wc;
		LAW(*byte == 6);
		*byte = 9;
		LAW(ibv_query_device(context, &attr) == EPERM);
		/* Nobody would ever wake it. */
		LAW(ibv_get_async_event(context, &event) == -1 && errno == EPERM);
		LAW(ibv_poll_cq(cq, 1, &wc) == 0);
		exit(0);
	}
	int status;
	LAW(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	LAW(*byte == 6);
	*byte = before;
}

static volatile int is_over;

static void *open_and_close(void *device)
{
	while (!is_over)
		LAW(ibv_close_device(ibv_open_device(device)) == 0);
	return NULL;
}

/* A child ends whatever other threads did when it was made. */
static void children_that_exit(void)
{
	pthread_t threads[2];
	for (int n = 0; n < 2; n++)
		LAW(pthread_create(&threads[n], NULL, open_and_close, context->device) == 0);
	for (int n = 0; n < 500; n++) {
		pid_t child = fork();
		if (child == 0)
			exit(0);
		int status = -1;
		LAW(child > 0);
		for (int ms = 0; ms < PATIENCE_MS && waitpid(child, &status, WNOHANG) == 0; ms++)
			usleep(1000);
		if (status != 0)
			kill(child, SIGKILL);
		LAW(status == 0);
	}
	is_over = 1;
	for (int n = 0; n < 2; n++)
		LAW(pthread_join(threads[n], NULL) == 0);
}

/* A QP whose peer is destroyed stays as it is, without a word, and finds out by its next request. */
static void peers_that_leave(void)
{
	struct ibv_qp *stays = make_qp(cq), *leaves = make_qp(cq);
	connect_to(stays, leaves);
	connect_to(leaves, stays);
	struct ibv_sge sge = { (uintptr_t)memory + 2048, 64, mr->lkey };
	struct ibv_recv_wr *bad_recv, recv = { .wr_id = 31, .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad, wr = { .wr_id = 32, .opcode = IBV_WR_SEND,
					.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED };
	LAW(ibv_post_recv(stays, &recv, &bad_recv) == 0);
	LAW(ibv_post_recv(leaves, &recv, &bad_recv) == 0);
	LAW(ibv_post_send(stays, &wr, &bad) == 0);
	LAW(completion().status == IBV_WC_SUCCESS && completion().status == IBV_WC_SUCCESS);
	while (is_readable(context->async_fd, 0)) {
		struct ibv_async_event event;
		LAW(ibv_get_async_event(context, &event) == 0);
		ibv_ack_async_event(&event);
	}
	LAW(ibv_destroy_qp(leaves) == 0);
	usleep(300000);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_wc wc;
	LAW(ibv_poll_cq(cq, 1, &wc) == 0 && !is_readable(context->async_fd, 0));
	LAW(ibv_query_qp(stays, &attr, IBV_QP_STATE, &init) == 0);
	LAW(attr.qp_state == IBV_QPS_RTS);
	LAW(ibv_post_send(stays, &wr, &bad) == 0);
	wc = completion();
	LAW(wc.wr_id == 32 && wc.status == IBV_WC_RETRY_EXC_ERR);
	LAW(wc.vendor_err == QP_GONE);
	wc = completion();
	LAW(wc.vendor_err == 0);
	LAW(wc.wr_id == 31 && wc.status == IBV_WC_WR_FLUSH_ERR);
	LAW(ibv_destroy_qp(stays) == 0);
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

/* A law that has a process for itself. */
static void run_one(const char *name)
{
	if (strcmp(name, "end") == 0) {
		before_the_end();
		end_of_the_service();
		after_the_end();
		return;
	}
	if (strcmp(name, "timeouts") == 0)
		timeouts();
	else if (strcmp(name, "threads") == 0)
		threads_at_once();
	else if (strcmp(name, "link") == 0)
		link_events();
	else
		LAW(!"a law of that name");
	LAW(ibv_destroy_qp(right) == 0);
	close_all();
}

int main(int count, char **arguments)
{
	open_all();
	regions();
	left = make_qp(cq);
	right = make_qp(cq);
	connect_to(left, right);
	connect_to(right, left);
	if (count > 1) {
		run_one(arguments[1]);
		return 0;
	}
	lists_of_requests();
	requests_put_together();
	groups_of_requests();
	events_of_cqs();
	channels();
	windows();
	shared_receives();
	refused_objects();
	datagrams();
	children();
	children_that_exit();
	peers_that_leave();
	errors();
	close_all();
	return 0;
}
